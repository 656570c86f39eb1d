package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sys/unix"
)

// Bounds of the answers under way on the metrics address, where anybody may ask: their number, and how
// long each may take who reads slowly.
const (
	scrapesAtOnce = 4
	scrapeTimeout = 30 * time.Second
)

// Health is what GET /healthz answers: with 200 while packets can pass, else with 503.
type Health struct {
	Status   string   `json:"status"`   // ok or failing
	Problems []string `json:"problems"` // what is wrong; empty if ok
}

// listenMetrics listens where metrics are to be served, in the network namespace of the calling thread;
// nil if nowhere.
func listenMetrics(c *Metrics) (net.Listener, error) {
	if c.Listen == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", c.Listen)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("listen for metrics: %w: choose another address as in metrics: {listen: \"127.0.0.1:9470\"}, or metrics: none", err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w", err)
	}
	return l, nil
}

// newTelemetry serves /metrics to Prometheus and /healthz to whoever starts and restarts gateways.
func newTelemetry(r *reporter, loads *policyLoads, log *slog.Logger) (*server, error) {
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		newCollector(r, loads), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError), MaxRequestsInFlight: scrapesAtOnce,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answerHealth(w, r.plane.Problems()) })
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		refuse(w, http.StatusNotFound, apiError{
			Error: fmt.Sprintf("nothing answers to %s %s", req.Method, req.URL.Path),
			Hint:  "GET /metrics and /healthz do; the control API is on the control socket",
		})
	})
	s := serverOf(mux, log)
	s.http.ReadTimeout, s.http.WriteTimeout, s.http.IdleTimeout = scrapeTimeout, scrapeTimeout, 4*scrapeTimeout
	return s, nil
}

func answerHealth(w http.ResponseWriter, problems []error) {
	h, code := Health{Status: "ok", Problems: []string{}}, http.StatusOK
	for _, p := range problems {
		h.Problems = append(h.Problems, p.Error())
	}
	if len(problems) > 0 {
		h.Status, code = "failing", http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(h) // whoever asked is gone
}
