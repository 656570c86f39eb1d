package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"time"
)

// How long a stop waits for answers under way.
const serverGrace = 2 * time.Second

// A server answers on the control socket, by HTTP and JSON:
//
//	GET /v1/status
//	GET /v1/flows[?filter=EXPRESSION][&limit=N]
//	GET /v1/drops[?all=1]
//	GET /v1/passes
//	GET /v1/rules
//	GET /v1/nat
//	GET /v1/pipeline/policy[?entries=N]
//	POST /v1/reload
//	POST /v1/flows/kill?filter=EXPRESSION|all=1
//	GET /v1/policy/history
//	GET /v1/policy/diff[?from=ENTRY][&to=ENTRY]
//	POST /v1/policy/rollback[?entry=N]
//	POST /v1/policy/confirm
//	GET /v1/sets
//	GET /v1/sets/NAME
//	POST /v1/sets/NAME/add
//	POST /v1/sets/NAME/del
//	POST /v1/sets/NAME/replace
//	POST /v1/capture, which answers with a stream of pcapng
//	DELETE /v1/capture?id=N
//	GET /v1/openapi.json
//
// The last one describes them all: openapi.yaml, beside this file. An error is an object with "error".
type server struct {
	reporter *reporter
	change   func(context.Context, *setCall) (*SetChanged, error)
	log      *slog.Logger
	http     http.Server
	routes   []string // "GET /v1/status"
	conns    connections

	mu      sync.Mutex
	stopped bool
	busy    sync.WaitGroup // handlers, which read memory that the plane unmaps
}

func newServer(r *reporter, policy *policyDesk, pipelines *pipelineDesk, change func(context.Context, *setCall) (*SetChanged, error), log *slog.Logger) (*server, error) {
	s := &server{reporter: r, change: change, log: log}
	api, err := readAPI()
	if err != nil {
		return nil, err
	}
	mux := newRouter(api)
	mux.HandleFunc("GET /v1/openapi.json", api.serve)
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { answer(w, r.status) })
	mux.HandleFunc("GET /v1/flows", s.flows)
	mux.HandleFunc("POST /v1/flows/kill", changes(s.kill))
	mux.HandleFunc("GET /v1/drops", s.drops)
	mux.HandleFunc("GET /v1/passes", func(w http.ResponseWriter, _ *http.Request) { answer(w, r.passes) })
	mux.HandleFunc("GET /v1/workers", func(w http.ResponseWriter, _ *http.Request) { answer(w, r.workers) })
	mux.HandleFunc("GET /v1/rules", func(w http.ResponseWriter, _ *http.Request) { answer(w, r.ruleStatus) })
	mux.HandleFunc("GET /v1/nat", func(w http.ResponseWriter, _ *http.Request) { answer(w, r.nat) })
	policy.register(mux)
	pipelines.reporter = r
	pipelines.register(mux)
	mux.HandleFunc("GET /v1/pipeline/policy", r.showPolicy)
	mux.HandleFunc("GET /v1/sets", func(w http.ResponseWriter, _ *http.Request) { answer(w, r.sets) })
	mux.HandleFunc("GET /v1/sets/{name}", s.setEntries)
	mux.HandleFunc("POST /v1/sets/{name}/add", changes(s.changeSet(false)))
	mux.HandleFunc("POST /v1/sets/{name}/del", changes(s.changeSet(true)))
	mux.HandleFunc("POST /v1/sets/{name}/replace", changes(s.replaceSet))
	closing, close := context.WithCancel(context.Background())
	r.captures = &captures{reporter: r, log: log, closing: closing}
	mux.HandleFunc("POST /v1/capture", forRoot("capture packets", r.captures.start))
	mux.HandleFunc("DELETE /v1/capture", forRoot("end a capture", r.captures.stop))
	s.guard(mux, log)
	s.http.RegisterOnShutdown(close)
	s.routes = mux.routes
	return s, nil
}

// serverOf returns a server that answers by a handler.
func serverOf(handler http.Handler, log *slog.Logger) *server {
	s := &server{}
	s.guard(handler, log)
	return s
}

// guard lets the handler answer until the server stops.
func (s *server) guard(handler http.Handler, log *slog.Logger) {
	s.http = http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if !s.enter() {
				refuse(w, http.StatusServiceUnavailable, apiError{Error: errStopping.Error(), Hint: "ask again when it runs"})
				return
			}
			defer s.busy.Done()
			answer := w
			if s.http.WriteTimeout == 0 {
				waiting := patient{w}
				defer waiting.await() // for what the server has yet to send
				answer = waiting
			}
			if !readBody(answer, req, s.http.ReadHeaderTimeout) {
				return
			}
			defer s.conns.answering(req.Context())()
			defer blame(log, req)
			handler.ServeHTTP(answer, req)
		}),
		ConnContext:       withConn,
		ConnState:         s.conns.state,
		ReadHeaderTimeout: askPatience,
		IdleTimeout:       idlePatience,
		MaxHeaderBytes:    maxHeader,

		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// blame logs a handler's panic, which ends the answer and not the gateway.
func blame(log *slog.Logger, req *http.Request) {
	why := recover()
	if why == nil {
		return
	}
	if why != http.ErrAbortHandler {
		log.Error("an answer ended in a panic", "method", shortened(req.Method), "path", shortened(req.URL.Path), "panic", why, "stack", string(debug.Stack()))
	}
	panic(http.ErrAbortHandler)
}

// enter admits a handler, unless the last one has been waited for.
func (s *server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.busy.Add(1)
	}
	return !s.stopped
}

// serve answers until stop is called.
func (s *server) serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// stop closes the socket and removes it, and returns once no handler runs any more.
func (s *server) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), serverGrace)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close() // whoever reads too slowly is cut off
	}
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.busy.Wait()
	return err
}

func (s *server) flows(w http.ResponseWriter, req *http.Request) {
	filter, err := ParseFilter(req.Form.Get("filter"))
	if err != nil {
		refuseFilter(w, err)
		return
	}
	limit := 0
	if text := req.Form.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 0 {
			refuse(w, http.StatusBadRequest, apiError{Error: fmt.Sprintf("limit %q is not a number", shortened(text)), Hint: "give a whole number; 0 is no limit"})
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	// A table may hold millions: they are written as they are read.
	b := bufio.NewWriterSize(w, 64<<10)
	e := json.NewEncoder(b)
	b.WriteByte('[')
	n := 0
	err = s.reporter.flows(filter, func(f *Flow) error {
		if n > 0 {
			b.WriteByte(',')
		}
		n++
		if err := e.Encode(f); err != nil {
			return err
		}
		if n == limit {
			return io.EOF
		}
		return nil
	})
	if err != nil && !errors.Is(err, io.EOF) {
		panic(http.ErrAbortHandler) // the answer has begun: only breaking it off tells the reader
	}
	b.WriteString("]\n")
	_ = b.Flush() // whoever asked is gone
}

func (s *server) drops(w http.ResponseWriter, req *http.Request) {
	all := isSet(req.Form.Get("all"))
	answer(w, func() ([]Drop, error) { return s.reporter.drops(all) })
}

// isSet reads a parameter that is yes or no.
func isSet(text string) bool { return text != "" && text != "0" && text != "false" }

func answer[T any](w http.ResponseWriter, what func() (T, error)) {
	v, err := what()
	if err != nil {
		refuse(w, http.StatusInternalServerError, apiError{Error: err.Error(), Hint: "the log of softdpu may say more"})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // whoever asked is gone
}

func refuse(w http.ResponseWriter, code int, e apiError) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(e) // whoever asked is gone
}
