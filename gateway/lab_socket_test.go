package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/testenv"
)

// hostile is what somebody sends to the control socket, and how it is answered: 0 is not at all.
type hostile struct {
	name   string
	send   string
	status int
	says   string
}

func hostileBytes() []hostile {
	get := func(target string) string {
		return "GET " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	}
	post := func(target, header, body string) string {
		return "POST " + target + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + header + "\r\n" + body
	}
	random := make([]byte, 64<<10)
	for i, r := 0, rand.New(rand.NewPCG(8, 8)); i < len(random); i++ {
		random[i] = byte(r.Uint32())
	}
	form := "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n"
	huge := strings.Repeat("a", 1<<20)
	list := []hostile{
		{"nothing", "", 0, ""},
		{"random bytes", string(random), 400, "Bad Request"},
		{"zeros", strings.Repeat("\x00", 100_000), 431, "Too Large"},
		{"a TLS hello", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + string(random[:500]) + "\r\n\r\n", 400, "Bad Request"},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 404, "these do: "},
		{"HTTP of the future", "GET /v1/status HTTP/9.9\r\nHost: x\r\n\r\n", 505, "HTTP"},
		{"half a header", "GET /v1/status HTTP/1.1\r\nHos", 400, "Bad Request"},
		{"a path of 1 MB", get("/" + huge), 431, "Too Large"},
		{"a header of 1 MB", "GET /v1/status HTTP/1.1\r\nHost: x\r\nX: " + huge + "\r\n\r\n", 431, "Too Large"},
		{"100,000 headers", "GET /v1/status HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("a: b\r\n", 100_000) + "\r\n", 431, "Too Large"},
		{"no host", "GET /v1/status HTTP/1.1\r\n\r\n", 400, "Host"},
		{"a body of 1 MB", post("/v1/reload", "Content-Length: 1048576\r\n", huge), 413, "64 KiB"},
		{"a body in chunks of 1 MB", post("/v1/flows/kill", "Transfer-Encoding: chunked\r\n", "100000\r\n"+huge+"\r\n0\r\n\r\n"), 413, "64 KiB"},
		{"a body that ends early", post("/v1/reload", "Content-Length: 100\r\n", "abc"), 400, "read the body"},
		{"a chunk that is none", post("/v1/reload", "Transfer-Encoding: chunked\r\n", "zz\r\n"), 400, "read the body"},
		{"a chunk of 2^64 bytes", post("/v1/reload", "Transfer-Encoding: chunked\r\n", "fffffffffffffffff\r\n"), 400, "read the body"},
		{"a negative length", post("/v1/reload", "Content-Length: -1\r\n", ""), 400, "Bad Request"},
		{"two lengths", post("/v1/reload", "Content-Length: 1\r\nContent-Length: 2\r\n", "ab"), 400, "Bad Request"},
		{"another encoding", post("/v1/reload", "Transfer-Encoding: gzip\r\n", ""), 501, "transfer encoding"},
		{"unknown path", get("/v2/status"), 404, "these do: "},
		{"a path that is no file", get("/v1/../../etc/passwd"), 404, "these do: "},
		{"two slashes", get("//v1//status"), 404, "these do: "},
		{"a whole address", get("http://elsewhere/v1/nothing"), 404, "these do: "},
		{"a proxy's method", "CONNECT elsewhere:443 HTTP/1.1\r\nHost: x\r\n\r\n", 404, "these do: "},
		{"an unknown method", "FROBNICATE /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405, "use GET"},
		{"a method of 10,000 letters", strings.Repeat("G", 10_000) + " /v1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405, "use GET"},
		{"a change by GET", get("/v1/reload"), 405, "use POST"},
		{"a change of what is read", post("/v1/status", "", ""), 405, "use GET"},
		{"options of everything", "OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404, "these do: "},
		{"an unknown parameter", get("/v1/flows?fliter=x"), 400, "it takes filter, limit"},
		{"a parameter where there is none", get("/v1/status?all=1"), 400, "it takes none"},
		{"a parameter twice", get("/v1/flows?limit=1&limit=2"), 400, "give it once"},
		{"a query that cannot be decoded", get("/v1/flows?filter=%zz"), 400, "data-urlencode"},
		{"semicolons", get("/v1/flows?a;b"), 400, "data-urlencode"},
		{"zero bytes in a query", get("/v1/flows?limit=%00"), 400, "whole number"},
		{"an enormous limit", get("/v1/flows?limit=99999999999999999999999"), 400, "whole number"},
		{"a negative limit", get("/v1/flows?limit=-1"), 400, "whole number"},
		{"a filter that is none", get("/v1/flows?filter=%ff%fe+or"), 400, "conditions begin with"},
		{"10,000 parentheses", get("/v1/flows?filter=" + strings.Repeat("(", 10_000)), 400, "inside each other"},
		{"10,000 negations", get("/v1/flows?filter=" + strings.Repeat("not+", 10_000)), 400, "inside each other"},
		{"5,000 alternatives", get("/v1/flows?filter=revoked" + strings.Repeat("+or+revoked", 5000)), 200, "["},
		{"a long word", get("/v1/flows?filter=rule+a+" + strings.Repeat("x", 50_000)), 400, "..."},
		{"nothing to kill", post("/v1/flows/kill", "", ""), 400, "filter=EXPRESSION"},
		{"a form and a query", post("/v1/flows/kill?all=1", fmt.Sprintf(form, 5), "all=1"), 400, "give it once"},
		{"a form that cannot be decoded", post("/v1/flows/kill", fmt.Sprintf(form, 10), "filter=%zz"), 400, "data-urlencode"},
		{"a form of several parts", post("/v1/flows/kill", "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 5\r\n", "--x--"), 400, "urlencoded"},
		{"two answers at once", "GET /v1/drops HTTP/1.1\r\nHost: x\r\n\r\n" + get("/v1/rules"), 200, "["},
	}
	return list
}

// send gives bytes to a control socket and returns the first answer; its status is 0 without one.
func send(socket, text string) (status int, body string, err error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return 0, "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	go func() {
		_, _ = io.WriteString(conn, text) // it may be closed before it is read
		_ = conn.(*net.UnixConn).CloseWrite()
	}()
	all, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) || len(all) == 0 {
		return 0, "", err
	}
	method, _, _ := strings.Cut(text, " ")
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(all)), &http.Request{Method: method})
	if err != nil {
		return 0, string(all), err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// usage is what a gateway takes of the machine, by its metrics.
type usage struct{ goroutines, files, memory float64 }

func (p *process) usage(t *testing.T, gw *testenv.Namespace) (u usage) {
	t.Helper()
	web := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		return gw.Dial(ctx, "tcp", address)
	}}}
	resp, err := web.Get("http://127.0.0.1:9469/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text := must(io.ReadAll(resp.Body))
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		v, _ := strconv.ParseFloat(value, 64)
		switch name {
		case "go_goroutines":
			u.goroutines = v
		case "process_open_fds":
			u.files = v
		case "process_resident_memory_bytes":
			u.memory = v
		}
	}
	if u.goroutines == 0 || u.files == 0 || u.memory == 0 {
		t.Fatalf("metrics say %+v:\n%.2000s", u, text)
	}
	return u
}

// Whatever somebody sends to the control socket, and however many do: each is answered with a remedy or cut off,
// an operator is answered meanwhile, the gateway takes no more of the machine than before, and no packet is lost.
func TestLabHostileSocket(t *testing.T) {
	t.Parallel()
	binary := buildSoftdpu(t, "")
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-sock"})
	gw := l.Must(t, testenv.Gateway)
	c := write(t, badRouted, lifePolicy)
	p := startProcess(t, gw, binary, c)
	p.ready(t)
	stream := startStream(t, l)
	stream.more(t, 50)
	first := stream.sent.Load()
	// What pools and caches hold is there from the first request on.
	for range 50 {
		must(p.Status(t.Context()))
	}
	before := p.usage(t, gw)
	operator := func(t *testing.T, when string) {
		t.Helper()
		start := time.Now()
		if s, err := p.Status(limited(t, 20*time.Second)); err != nil || s.Policy.Epoch != 1 {
			t.Fatalf("%s an operator is told %v after %s: %+v", when, err, time.Since(start), s)
		}
	}

	besiege(t, c.Control.Socket, hostileBytes(), askPatience, operator, func(t *testing.T) {
		if u := p.usage(t, gw); u.files > before.files+maxConnections+20 || u.goroutines > before.goroutines+3*maxConnections {
			t.Errorf("before %+v, now %+v", before, u)
		}
	})

	testenv.Eventually(t, 60*time.Second, func() error {
		u := p.usage(t, gw)
		if u.goroutines > before.goroutines+4 || u.files > before.files+4 || u.memory > before.memory+128<<20 {
			return fmt.Errorf("before %+v, now %+v", before, u)
		}
		return nil
	})
	last := stream.sent.Load()
	if missing := stream.missing(first, last); len(missing) > 0 {
		t.Errorf("of %d..%d these are missing: %v", first, last, missing)
	}
	stream.stop() // and say whether anything arrived that is denied
	operator(t, "afterwards")
	if log := p.log.String(); strings.Contains(log, "panic") || strings.Count(log, "\n") > 200 {
		t.Errorf("the log says %.3000s", log)
	}
	p.stop(t)
}

// besiege sends what is hostile to a control socket: bytes, more than anybody asks, slowly, and on 10,000
// connections. Operator checks in between that somebody who asks is answered, crowded that the connections are few.
func besiege(t *testing.T, socket string, list []hostile, patience time.Duration, operator func(t *testing.T, when string), crowded func(*testing.T)) {
	check, err := apiSchemas()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range list {
		t.Run(h.name, func(t *testing.T) {
			status, body, err := send(socket, h.send)
			if status != h.status || !strings.Contains(body, h.says) {
				t.Errorf("answers %d, want %d and %q: %.300q, %v", status, h.status, h.says, body, err)
			}
			if strings.HasPrefix(body, "{") && status >= 400 {
				if err := check.check("GET", "/", status, []byte(body)); err != nil {
					t.Error(err)
				}
			}
			if len(body) > 64<<10 {
				t.Errorf("an answer of %d bytes", len(body))
			}
		})
	}

	t.Run("headers without end", func(t *testing.T) {
		conn := must(net.Dial("unix", socket))
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(conn, "GET /v1/status HTTP/1.1\r\nHost: x\r\n")
		sent, err := 0, error(nil)
		for n := 0; err == nil && sent < 64<<20; sent += n {
			n, err = io.WriteString(conn, "X-More: "+strings.Repeat("y", 1000)+"\r\n")
		}
		if sent > 4<<20 {
			t.Errorf("%d bytes of headers were taken", sent)
		}
	})
	t.Run("slow headers and bodies", func(t *testing.T) {
		var conns []net.Conn
		for i := range 2 * maxConnections {
			conn := must(net.Dial("unix", socket))
			defer conn.Close()
			conns = append(conns, conn)
			_, _ = io.WriteString(conn, []string{"GET /v1/sta", "POST /v1/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"}[i%2])
		}
		start, open := time.Now(), len(conns)
		for open > 0 && time.Since(start) < patience+30*time.Second {
			open = 0
			for _, conn := range conns {
				if _, err := io.WriteString(conn, "x"); err == nil {
					open++
				}
			}
			operator(t, "beside slow ones")
			time.Sleep(patience / 20)
		}
		// Header and body have their time from their beginning, however many bytes come meanwhile.
		if took := time.Since(start); open > 0 || took < patience/2 {
			t.Errorf("%d of %d are open after %s", open, len(conns), took)
		}
	})
	t.Run("answers that nobody reads", func(t *testing.T) {
		for range 50 {
			conn := must(net.Dial("unix", socket))
			defer conn.Close()
			_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
			_, _ = io.WriteString(conn, strings.Repeat("GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n", 1000))
		}
		operator(t, "beside those who do not read")
	})
	t.Run("10,000 connections", func(t *testing.T) {
		conns := manyConnections(t, socket, 10_000)
		defer func() {
			for _, conn := range conns {
				conn.Close()
			}
		}()
		operator(t, "beside 10,000 connections")
		crowded(t)
	})
}

// Without a gateway behind it, the server of the control socket withstands the same, and leaves nothing.
func TestServerBesieged(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	log := &lockedBuffer{}
	ended := make(chan struct{})
	close(ended)
	s, err := newServer(&reporter{}, &policyDesk{g: &running{ending: ended}}, &pipelineDesk{}, nil, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	s.http.ReadHeaderTimeout = time.Second
	goroutines := runtime.NumGoroutine()
	served := make(chan error, 1)
	go func() { served <- s.serve(l) }()
	web := NewClient(socket)
	operator := func(t *testing.T, when string) {
		t.Helper()
		var document map[string]any
		if err := web.get(limited(t, 20*time.Second), "openapi.json", nil, &document); err != nil || document["openapi"] == nil {
			t.Fatalf("%s an operator is told %v", when, err)
		}
	}
	list := slices.DeleteFunc(hostileBytes(), func(h hostile) bool { return h.status == http.StatusOK })
	besiege(t, socket, list, s.http.ReadHeaderTimeout, operator, func(t *testing.T) {
		s.conns.mu.Lock()
		defer s.conns.mu.Unlock()
		if len(s.conns.open) > maxConnections {
			t.Errorf("%d connections are open", len(s.conns.open))
		}
	})
	operator(t, "afterwards")
	if err := errors.Join(s.stop(), <-served); err != nil {
		t.Error(err)
	}
	testenv.Eventually(t, 20*time.Second, func() error {
		if n := runtime.NumGoroutine(); n > goroutines+2 {
			return fmt.Errorf("%d goroutines, and before %d", n, goroutines)
		}
		return nil
	})
	if strings.Contains(log.String(), "panic") {
		t.Errorf("a handler panicked:\n%s", log)
	}
}

// manyConnections opens so many at once, some of which say a word.
func manyConnections(t *testing.T, socket string, n int) (conns []net.Conn) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Max < uint64(n)+500 {
		n = int(limit.Max) / 2
		t.Logf("only %d files may be open here, so %d connections are opened", limit.Max, n)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range n / 8 {
				conn, err := net.Dial("unix", socket)
				for end := time.Now().Add(20 * time.Second); errors.Is(err, unix.EAGAIN) && time.Now().Before(end); {
					time.Sleep(time.Millisecond)
					conn, err = net.Dial("unix", socket)
				}
				if err != nil {
					t.Errorf("connection: %v", err)
					return
				}
				if i%2 == 0 {
					_, _ = io.WriteString(conn, "GET /")
				}
				mu.Lock()
				conns = append(conns, conn)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return conns
}
