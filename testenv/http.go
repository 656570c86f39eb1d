package testenv

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"
)

// maxDownload bounds what the HTTP server gives in one answer, in bytes.
const maxDownload = 64 << 30

// An HTTPServer answers GET /bytes/N with N bytes and their SHA-256 in the header field Repr-Digest
// (RFC 9530), and GET / with a line of text.
type HTTPServer struct {
	listener net.Listener
	server   http.Server
	done     chan struct{}
}

// ServeHTTP starts an HTTP server in the namespace. Port 0 takes a free one.
func (n *Namespace) ServeHTTP(ctx context.Context, address netip.AddrPort) (*HTTPServer, error) {
	l, err := n.Listen(ctx, "tcp", address.String())
	if err != nil {
		return nil, fmt.Errorf("serve HTTP in %s: %w", n.name, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello %s, this is %s\n", r.RemoteAddr, n.name)
	})
	mux.HandleFunc("GET /bytes/{count}", serveBytes)
	s := &HTTPServer{listener: l, done: make(chan struct{})}
	s.server = http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(s.done)
		_ = s.server.Serve(l) // always http.ErrServerClosed
	}()
	return s, nil
}

// Addr is where the server listens.
func (s *HTTPServer) Addr() netip.AddrPort { return s.listener.Addr().(*net.TCPAddr).AddrPort() }

// URL is where that many bytes are to be had.
func (s *HTTPServer) URL(bytes int64) string {
	return fmt.Sprintf("http://%s/bytes/%d", s.Addr(), bytes)
}

// Close stops the server and breaks off what it is sending.
func (s *HTTPServer) Close() error {
	err := s.server.Close()
	<-s.done
	return err
}

func serveBytes(w http.ResponseWriter, r *http.Request) {
	count, err := strconv.ParseInt(r.PathValue("count"), 10, 64)
	if err != nil || count < 0 || count > maxDownload {
		http.Error(w, fmt.Sprintf("want /bytes/N with N from 0 to %d", int64(maxDownload)), http.StatusBadRequest)
		return
	}
	seed := uint64(count)
	hash := sha256.New()
	_, _ = io.Copy(hash, newPattern(seed, count)) // neither side can fail
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(count, 10))
	w.Header().Set("Repr-Digest", digest(hash.Sum(nil)))
	_, _ = io.CopyBuffer(w, newPattern(seed, count), make([]byte, patternBlock)) // the client sees a short answer
}

func digest(sum []byte) string {
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum) + ":"
}

// Download fetches a URL of an HTTPServer from inside the namespace, over a connection of its own,
// and compares length and hash with what the header promised.
func (n *Namespace) Download(ctx context.Context, url string) (Transfer, error) {
	start := time.Now()
	transport := &http.Transport{DialContext: n.Dial, DisableCompression: true, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Transfer{}, fmt.Errorf("download: %w", err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return Transfer{}, fmt.Errorf("download: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return Transfer{}, fmt.Errorf("download %s: status %s", url, resp.Status)
	}
	hash := sha256.New()
	t := Transfer{}
	if t.Bytes, err = io.CopyBuffer(hash, resp.Body, make([]byte, patternBlock)); err != nil {
		return Transfer{}, fmt.Errorf("download %s: %w after %d bytes", url, err, t.Bytes)
	}
	hash.Sum(t.SHA256[:0])
	t.Duration = time.Since(start)
	if want := resp.Header.Get("Repr-Digest"); want != digest(t.SHA256[:]) {
		return Transfer{}, fmt.Errorf("download %s: %d bytes arrived with digest %s, promised was %s",
			url, t.Bytes, digest(t.SHA256[:]), want)
	}
	return t, nil
}
