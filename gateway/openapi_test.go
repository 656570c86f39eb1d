package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/softdpu/softdpu/bpf"
	"github.com/softdpu/softdpu/dataplane"
	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable/pipe"
)

// apiTypes are the Go types of the schemas in openapi.yaml. A path whose answer is of another type adds it here.
var apiTypes = map[string]any{
	"Error": apiError{}, "Mistake": Mistake{},
	"Flow": Flow{}, "Killed": Killed{}, "Drop": Drop{}, "Pass": Pass{}, "RuleStatus": RuleStatus{}, "Reloaded": Reloaded{},
	"Status": Status{}, "PolicyStatus": PolicyStatus{}, "FileStatus": FileStatus{}, "PortStatus": PortStatus{},
	"TableStatus": TableStatus{}, "FragmentStatus": FragmentStatus{}, "EventStatus": EventStatus{}, "Inheritance": Inheritance{},
	"UnconfirmedStatus": UnconfirmedStatus{}, "RolledBackStatus": RolledBackStatus{}, "Confirmed": Confirmed{},
	"HistoryEntry": HistoryEntry{}, "Changes": firewall.Changes{}, "Change": firewall.Change{},
	"PolicyDiff": PolicyDiff{}, "DiffSide": DiffSide{}, "Difference": firewall.Difference{}, "FieldDiff": firewall.FieldDiff{},
	"Pipeline": Pipeline{}, "PolicyPipes": PolicyPipes{}, "PipelineApplied": PipelineApplied{}, "PipelineNotice": PipelineNotice{}, "PipelineRemoved": PipelineRemoved{}, "PipelineWalk": PipelineWalk{}, "PipelineWalkStep": PipelineWalkStep{},
	"PipelineEntries": PipelineEntries{}, "PipelineEntry": PipelineEntry{}, "PipelineEdited": PipelineEdited{}, "PipelineEntryResult": PipelineEntryResult{},
	"PipelineReport": pipe.Report{}, "PipeReport": pipe.PipeReport{}, "PipeEntry": pipe.EntryReport{}, "PipeCounter": pipe.CounterReport{}, "SetStatus": SetStatus{}, "SetEntry": SetEntry{}, "SetChange": SetChange{}, "SetChanged": SetChanged{},
	"WorkersStatus": WorkersStatus{}, "WorkersSummary": WorkersSummary{}, "WorkerAttempt": worker.Attempt{}, "WorkerMemory": worker.MemoryStatus{},
	"WorkerStatus": worker.WorkerStatus{}, "WorkerQueue": worker.QueueStatus{}, "WorkerRing": worker.RingStatus{}, "WorkerStall": worker.Stall{},
	"RuleMirror": RuleMirror{}, "FlowNAT": FlowNAT{},
	"NATStatus": NATStatus{}, "NATRuleStatus": NATRuleStatus{}, "NATAddressStatus": NATAddressStatus{}, "NATSourceStatus": NATSourceStatus{},
	"CaptureRequest": CaptureRequest{}, "CaptureStatus": CaptureStatus{},
}

// apiAnywhere are the statuses that every path may answer with; all but 503 stand in the document's text alone.
var apiAnywhere = []int{400, 404, 405, 408, 413, 503}

// apiSchemas is the document, and what is made of it once.
var apiSchemas = sync.OnceValues(func() (*apiChecker, error) {
	d, err := readAPI()
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(d.text))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("api.json", doc); err != nil {
		return nil, err
	}
	return &apiChecker{doc: doc.(map[string]any), compiler: c, schemas: make(map[string]*jsonschema.Schema)}, nil
})

// An apiChecker holds answers against the document. It is safe for concurrent use.
type apiChecker struct {
	doc      map[string]any
	mu       sync.Mutex
	compiler *jsonschema.Compiler
	schemas  map[string]*jsonschema.Schema
}

// at follows keys into the document, and a reference at its end. It returns nil if there is nothing.
func (a *apiChecker) at(keys ...string) any {
	var v any = a.doc
	for _, k := range keys {
		m, _ := v.(map[string]any)
		v = m[k]
		if m, _ = v.(map[string]any); m != nil && m["$ref"] != nil {
			v = a.at(strings.Split(strings.TrimPrefix(m["$ref"].(string), "#/"), "/")...)
		}
	}
	return v
}

func (a *apiChecker) keys(at ...string) []string {
	m, _ := a.at(at...).(map[string]any)
	return slices.Sorted(maps.Keys(m))
}

// schema compiles the schema of that name.
func (a *apiChecker) schema(pointer string) (*jsonschema.Schema, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.schemas[pointer]; s != nil {
		return s, nil
	}
	s, err := a.compiler.Compile("api.json#/" + pointer)
	a.schemas[pointer] = s
	return s, err
}

// template is the document's path for that of a request.
func (a *apiChecker) template(path string) string {
	asked := strings.Split(path, "/")
	for _, t := range a.keys("paths") {
		parts := strings.Split(t, "/")
		if len(parts) == len(asked) && !slices.ContainsFunc(parts, func(p string) bool {
			return !strings.HasPrefix(p, "{") && p != asked[slices.Index(parts, p)]
		}) {
			return t
		}
	}
	return path
}

// check holds an answer against the document.
func (a *apiChecker) check(method, path string, status int, body []byte) error {
	path = a.template(path)
	status200 := fmt.Sprint(status)
	pointer := "components/schemas/Error"
	switch operation := strings.ToLower(method); {
	case a.at("paths", path, operation, "responses", status200) != nil && status == http.StatusOK:
		pointer = fmt.Sprintf("paths/%s/%s/responses/200/content/application~1json/schema", strings.ReplaceAll(path, "/", "~1"), operation)
	case a.at("paths", path, operation, "responses", status200) == nil && !slices.Contains(apiAnywhere, status):
		return fmt.Errorf("openapi.yaml does not say that %s %s answers %d", method, path, status)
	}
	s, err := a.schema(pointer)
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%s %s, %d: %w: %.200s", method, path, status, err, body)
	}
	if err := s.Validate(v); err != nil {
		return fmt.Errorf("%s %s, %d: %w: %.2000s", method, path, status, err, body)
	}
	if e, _ := v.(map[string]any); status >= 400 && e["hint"] == nil && e["errors"] == nil {
		return fmt.Errorf("%s %s, %d names no remedy: %s", method, path, status, body)
	}
	return nil
}

// A checkedTransport holds every answer that a test gets from a gateway against the document.
type checkedTransport struct {
	http.RoundTripper
	t     testing.TB
	check *apiChecker
}

func (c *checkedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := c.RoundTripper.RoundTrip(req)
	if err != nil || resp.Header.Get("Content-Type") != "application/json" {
		return resp, err
	}
	defer resp.Body.Close()
	body, readErr := io.ReadAll(resp.Body)
	resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), failing{readErr}))
	if readErr == nil && len(body) < 1<<20 { // a million flows are as a thousand
		if err := c.check.check(req.Method, req.URL.Path, resp.StatusCode, body); err != nil {
			c.t.Errorf("%v", err)
		}
	}
	return resp, nil
}

// failing ends a body as the one that was read did.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) {
	if f.err == nil {
		return 0, io.EOF
	}
	return 0, f.err
}

// checkedClient is a client whose answers are held against the document.
func checkedClient(t testing.TB, socket string) *Client {
	t.Helper()
	check, err := apiSchemas()
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(socket)
	c.http.Transport = &checkedTransport{c.http.Transport, t, check}
	return c
}

// The document names the paths that the control socket answers to, and each says what a client has to know.
func TestAPIDocumentNamesPaths(t *testing.T) {
	a, err := apiSchemas()
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServer(&reporter{}, &policyDesk{}, &pipelineDesk{}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	seen := map[string]bool{}
	for _, path := range a.keys("paths") {
		for _, method := range a.keys("paths", path) {
			route := strings.ToUpper(method) + " " + path
			documented = append(documented, route)
			id, _ := a.at("paths", path, method, "operationId").(string)
			if summary, _ := a.at("paths", path, method, "summary").(string); id == "" || seen[id] || summary == "" {
				t.Errorf("%s needs a summary and an operationId of its own", route)
			}
			seen[id] = true
			if a.at("paths", path, method, "responses", "200") == nil || a.at("paths", path, method, "responses", "503") == nil {
				t.Errorf("%s needs the responses 200 and 503", route)
			}
			if method != "get" && a.at("paths", path, method, "responses", "403") == nil {
				t.Errorf("%s needs the response 403: it is for root", route)
			}
		}
	}
	for _, route := range s.routes {
		if !slices.Contains(documented, route) {
			t.Errorf("openapi.yaml does not describe %s", route)
		}
	}
	for _, route := range documented {
		if !slices.Contains(s.routes, route) {
			t.Errorf("openapi.yaml describes %s, which nothing answers to", route)
		}
	}
}

// References lead somewhere, and everything that is named is referred to.
func TestAPIDocumentIsWhole(t *testing.T) {
	a, err := apiSchemas()
	if err != nil {
		t.Fatal(err)
	}
	if version, _ := a.doc["openapi"].(string); !strings.HasPrefix(version, "3.1.") {
		t.Errorf("is of version %q", version)
	}
	used := map[string]bool{}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				used[ref] = true
				if a.at(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...) == nil {
					t.Errorf("%s leads nowhere", ref)
				}
			}
			for _, item := range v {
				walk(item)
			}
		}
	}
	walk(a.doc)
	for _, kind := range a.keys("components") {
		for _, name := range a.keys("components", kind) {
			if ref := "#/components/" + kind + "/" + name; !used[ref] {
				t.Errorf("nothing refers to %s", ref)
			}
			if kind == "schemas" {
				if _, err := a.schema("components/schemas/" + name); err != nil {
					t.Error(err)
				}
				if _, known := apiTypes[name]; !known {
					t.Errorf("apiTypes lacks the Go type of %s", name)
				}
			}
		}
	}
}

// The properties of a schema are the fields of its Go type, with their types; those that are always there are
// required.
func TestAPIDocumentNamesFields(t *testing.T) {
	a, err := apiSchemas()
	if err != nil {
		t.Fatal(err)
	}
	names := map[reflect.Type]string{}
	for name, v := range apiTypes {
		names[reflect.TypeOf(v)] = name
	}
	for name, v := range apiTypes {
		typ := reflect.TypeOf(v)
		if a.at("components", "schemas", name) == nil {
			t.Errorf("openapi.yaml lacks the schema %s, of %s", name, typ)
			continue
		}
		properties := a.keys("components", "schemas", name, "properties")
		var required []string
		for i := range typ.NumField() {
			f := typ.Field(i)
			field, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if field == "" || field == "-" {
				t.Errorf("%s.%s has no JSON name", typ, f.Name)
				continue
			}
			if options != "omitempty" {
				required = append(required, field)
			}
			at := slices.Index(properties, field)
			if at < 0 {
				t.Errorf("openapi.yaml lacks %q of %s", field, name)
				continue
			}
			properties = slices.Delete(properties, at, at+1)
			schema, _ := a.doc["components"].(map[string]any)["schemas"].(map[string]any)[name].(map[string]any)["properties"].(map[string]any)[field].(map[string]any)
			want := goType(f.Type, names)
			if options == "omitempty" {
				want = strings.TrimSuffix(want, " or null") // it is left out
			}
			if got := schemaType(schema); got != want {
				t.Errorf("%q of %s is %s in openapi.yaml, and %s in Go", field, name, got, want)
			}
		}
		if len(properties) > 0 {
			t.Errorf("openapi.yaml has %v of %s, which Go does not", properties, name)
		}
		var listed []string
		list, _ := a.at("components", "schemas", name, "required").([]any)
		for _, r := range list {
			listed = append(listed, r.(string))
		}
		slices.Sort(listed)
		slices.Sort(required)
		if !slices.Equal(listed, required) {
			t.Errorf("required of %s are %v, want %v", name, listed, required)
		}
	}
}

// schemaType writes the type of a schema in short.
func schemaType(s map[string]any) string {
	if ref, ok := s["$ref"].(string); ok {
		return ref[strings.LastIndexByte(ref, '/')+1:]
	}
	if either, ok := s["anyOf"].([]any); ok {
		ref, _ := either[0].(map[string]any)
		return schemaType(ref) + " or null"
	}
	out := fmt.Sprint(s["type"])
	switch {
	case out == "array":
		items, _ := s["items"].(map[string]any)
		out = "array of " + schemaType(items)
		if s["minItems"] != nil {
			out = fmt.Sprintf("%v to %v in an %s", s["minItems"], s["maxItems"], out)
		}
	case out == "object" && s["additionalProperties"] != nil:
		out = "map to " + schemaType(s["additionalProperties"].(map[string]any))
	case s["format"] != nil:
		out += " as " + fmt.Sprint(s["format"])
	}
	return out
}

// goType writes what schemaType writes for a field of that type.
func goType(t reflect.Type, names map[reflect.Type]string) string {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "string as date-time"
	case t == reflect.TypeFor[*time.Time]():
		return "[string null] as date-time"
	case t == reflect.TypeFor[netip.Addr]():
		return "string"
	case t == reflect.TypeFor[json.RawMessage]():
		return "object"
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Slice:
		return "array of " + goType(t.Elem(), names)
	case reflect.Array:
		return fmt.Sprintf("%d to %d in an array of %s", t.Len(), t.Len(), goType(t.Elem(), names))
	case reflect.Map:
		return "map to " + goType(t.Elem(), names)
	case reflect.Pointer:
		if t.Elem().Kind() == reflect.Struct {
			return goType(t.Elem(), names) + " or null"
		}
		return "[" + goType(t.Elem(), names) + " null]"
	case reflect.Struct:
		if name := names[t]; name != "" {
			return name
		}
		return "a type that apiTypes lacks"
	}
	return "integer"
}

// An answer that the document does not describe is told of.
func TestAPICheckerFindsWhatIsWrong(t *testing.T) {
	a, err := apiSchemas()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, method, path string
		status             int
		body, want         string
	}{
		{"right", "GET", "/v1/drops", 200, `[{"reason":"deny","packets":1,"bytes":60,"unlogged":0}]`, ""},
		{"a field missing", "GET", "/v1/drops", 200, `[{"reason":"deny","packets":1,"bytes":60}]`, "unlogged"},
		{"another type", "GET", "/v1/drops", 200, `[{"reason":"deny","packets":"1","bytes":60,"unlogged":0}]`, "/0/packets"},
		{"null for an array", "GET", "/v1/drops", 200, `null`, "null"},
		{"another status", "GET", "/v1/drops", 422, `{"error":"x","hint":"y"}`, "does not say"},
		{"an error without a remedy", "GET", "/v1/drops", 400, `{"error":"x"}`, "no remedy"},
		{"an error", "POST", "/v1/reload", 422, `{"error":"x","errors":[{"file":"p","message":"m"}]}`, ""},
		{"no JSON", "GET", "/v1/status", 500, `oops`, "invalid character"},
	} {
		err := a.check(tt.method, tt.path, tt.status, []byte(tt.body))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	var served map[string]any
	d, _ := readAPI()
	if err := json.Unmarshal(d.text, &served); err != nil || served["openapi"] == nil {
		t.Errorf("what is served is no document: %v", err)
	}
}

// Words that the document lists are those that there are.
func TestAPIDocumentNamesWords(t *testing.T) {
	a, err := apiSchemas()
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	for s := flowSynSent; s < bpf.XDPFlowStateFLOW_STATE_LEN; s++ {
		if s != bpf.XDPFlowStateFLOW_ALIAS {
			states = append(states, s.String())
		}
	}
	for _, row := range []struct {
		schema, field string
		want          []string
	}{
		{"Flow", "state", states},
		{"Flow", "tier", tiers},
		{"RuleStatus", "action", []string{firewall.Allow.String(), firewall.Deny.String(), firewall.Reject.String()}},
		{"PortStatus", "mode", []string{dataplane.ModeNative.String(), dataplane.ModeGeneric.String(), ""}},
		{"Inheritance", "how", []string{startFirst, startTakeOver, startConversion, startAfresh}},
		{"NATRuleStatus", "kind", []string{string(firewall.NATKeep), string(firewall.NATMasquerade), string(firewall.NATSource), string(firewall.NATDestination), string(firewall.NATPrefix)}},
		{"WorkerStatus", "state", []string{workerPolling, workerSleeping, workerSilent, workerRestarting}},
		{"RuleStatus", "on_failure", []string{"", firewall.OnFailureDrop, firewall.OnFailureBypass}},
		{"HistoryEntry", "result", []string{resultInForce, resultRefused}},
		{"HistoryEntry", "confirm", []string{"", confirmWaiting, confirmConfirmed, confirmRolledBack}},
		{"DiffSide", "what", []string{sideInForce, sideEntry, sideFiles}},
		{"SetStatus", "type", []string{string(firewall.SetPrefix), string(firewall.SetPort), string(firewall.SetName), string(firewall.SetMAC)}},
		{"SetEntry", "source", []string{setPolicy, setList, setRuntime, setRemoved, setIdle}},
		{"Difference", "kind", []string{firewall.KindZone, firewall.KindSet, firewall.KindWorkload, firewall.KindService, firewall.KindNAT, firewall.KindRule, firewall.KindTest}},
		{"Difference", "how", []string{firewall.DiffAdded, firewall.DiffRemoved, firewall.DiffChanged, firewall.DiffMoved}},
	} {
		var listed []string
		list, _ := a.at("components", "schemas", row.schema, "properties", row.field, "enum").([]any)
		for _, word := range list {
			listed = append(listed, word.(string))
		}
		slices.Sort(listed)
		slices.Sort(row.want)
		if !slices.Equal(listed, row.want) {
			t.Errorf("%s of %s is one of %v, want %v", row.field, row.schema, listed, row.want)
		}
	}
}
