package gateway

import (
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
)

// A router finds the handler of a request, and refuses with a remedy what no handler should see: other paths,
// other methods, and parameters that the document of the API does not name.
type router struct {
	mux    http.ServeMux
	routes []string // "GET /v1/status", as they were given
	api    *apiDocument
}

func newRouter(api *apiDocument) *router {
	r := &router{api: api}
	r.mux.HandleFunc("/", r.unknown)
	return r
}

// HandleFunc answers to a method and a path, as "GET /v1/status".
func (r *router) HandleFunc(pattern string, handler http.HandlerFunc) {
	r.routes = append(r.routes, pattern)
	r.mux.HandleFunc(pattern, func(w http.ResponseWriter, req *http.Request) {
		if e := r.parameters(pattern, req); e != nil {
			refuse(w, http.StatusBadRequest, *e)
			return
		}
		handler(w, req)
	})
}

// ServeHTTP answers to every path as it is written: none is taken for another that is spelled better.
func (r *router) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if !path.IsAbs(req.URL.Path) || path.Clean(req.URL.Path) != req.URL.Path || req.Method == http.MethodConnect {
		r.nothing(w, req)
		return
	}
	r.mux.ServeHTTP(w, req)
}

// parameters reads those of the query, and of a form, into req.Form. Each is one that the document names, and
// is given once: who writes `fliter=` should not be shown, or lose, all flows.
func (r *router) parameters(pattern string, req *http.Request) *apiError {
	query, err := url.ParseQuery(req.URL.RawQuery)
	if err != nil {
		return &apiError{Error: fmt.Sprintf("read the query: %v", err), Hint: "encode what is no letter or digit, as curl's --data-urlencode does"}
	}
	if r.api.takesJSON(pattern) { // whatever curl calls the body
		req.Header.Set("Content-Type", "application/json")
	}
	if kind, _, _ := mime.ParseMediaType(req.Header.Get("Content-Type")); kind == "multipart/form-data" {
		return &apiError{Error: "a form of several parts is not read", Hint: "send it as application/x-www-form-urlencoded, or in the query"}
	}
	if err := req.ParseForm(); err != nil {
		return &apiError{Error: fmt.Sprintf("read the form: %v", err), Hint: "encode what is no letter or digit, as curl's --data-urlencode does"}
	}
	known := r.api.parameters(pattern)
	for name, values := range req.Form {
		if !slices.Contains(known, name) {
			hint := "it takes " + strings.Join(known, ", ")
			if len(known) == 0 {
				hint = "it takes none"
			}
			return &apiError{Error: fmt.Sprintf("%s has no parameter %q", pattern, shortened(name)), Hint: hint}
		}
		if len(values) > 1 || len(query[name]) > 1 {
			return &apiError{Error: fmt.Sprintf("parameter %q is given twice", name), Hint: "give it once"}
		}
	}
	return nil
}

// unknown answers to what no route takes: another method of a path, or another path.
func (r *router) unknown(w http.ResponseWriter, req *http.Request) {
	var methods []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		other := &http.Request{Method: method, URL: &url.URL{Path: req.URL.Path}}
		if _, pattern := r.mux.Handler(other); slices.Contains(r.routes, pattern) && strings.HasPrefix(pattern, method) {
			methods = append(methods, method)
		}
	}
	if len(methods) > 0 {
		w.Header().Set("Allow", strings.Join(methods, ", "))
		refuse(w, http.StatusMethodNotAllowed, apiError{
			Error: fmt.Sprintf("%s does not answer to %s", req.URL.Path, shortened(req.Method)), Hint: "use " + strings.Join(methods, " or "),
		})
		return
	}
	r.nothing(w, req)
}

// nothing answers to a path that is none.
func (r *router) nothing(w http.ResponseWriter, req *http.Request) {
	refuse(w, http.StatusNotFound, apiError{
		Error: fmt.Sprintf("nothing answers to %s %s", shortened(req.Method), shortened(req.URL.Path)),
		Hint:  "these do: " + strings.Join(r.routes, ", "),
	})
}

// shortened is what somebody sent, for a message.
func shortened(text string) string {
	const most = 100 // bytes
	if len(text) > most {
		text = text[:most] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}
