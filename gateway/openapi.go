package gateway

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/goccy/go-yaml"
)

// openAPI describes what the control socket answers. A path, a parameter or a field that is not in it is refused,
// or fails a test.
//
//go:embed openapi.yaml
var openAPI []byte

// apiDocument is the part of an OpenAPI document that requests are held against.
type apiDocument struct {
	text       []byte                             // as JSON
	Paths      map[string]map[string]apiOperation `json:"paths"`
	Components struct {
		Parameters map[string]apiParameter `json:"parameters"`
	} `json:"components"`
}

// An apiOperation is what a path takes by one method.
type apiOperation struct {
	Parameters  []apiParameter `json:"parameters"`
	RequestBody *struct{}      `json:"requestBody"`
}

type apiParameter struct {
	Ref  string `json:"$ref"`
	Name string `json:"name"`
	In   string `json:"in"`
}

// readAPI reads the document. Whether it is one, tests have seen.
func readAPI() (*apiDocument, error) {
	text, err := yaml.YAMLToJSON(openAPI)
	if err != nil {
		return nil, fmt.Errorf("read the document of the control API: %w", err)
	}
	d := &apiDocument{text: text}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("read the document of the control API: %w", err)
	}
	return d, nil
}

// operation finds that of a method and path, as "GET /v1/flows".
func (d *apiDocument) operation(route string) apiOperation {
	method, path, _ := strings.Cut(route, " ")
	return d.Paths[path][strings.ToLower(method)]
}

// takesJSON reports whether the body is not a form.
func (d *apiDocument) takesJSON(route string) bool { return d.operation(route).RequestBody != nil }

// parameters names those that a method and path, as "GET /v1/flows", takes in its query.
func (d *apiDocument) parameters(route string) (names []string) {
	for _, p := range d.operation(route).Parameters {
		if name, shared := strings.CutPrefix(p.Ref, "#/components/parameters/"); shared {
			p = d.Components.Parameters[name]
		}
		if p.In == "query" {
			names = append(names, p.Name)
		}
	}
	return names
}

func (d *apiDocument) serve(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(d.text) // whoever asked is gone
}
