package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/testenv"
)

// FuzzAPI sends bytes to the control socket of a gateway: they are answered or the connection is closed, at once;
// an answer is JSON as the document says, with a remedy where it is an error; no handler panics.
func FuzzAPI(f *testing.F) {
	testenv.RequireRoot(f)
	g := runIn(f, testenv.New(f, "client-server", testenv.Options{}), write(f, testConfig+"metrics: none\n", testPolicy))
	check, err := apiSchemas()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		"GET /v1/status HTTP/1.1\r\nHost: softdpu\r\n\r\n",
		"GET /v1/flows?filter=src+10.0.0.0/8+and+(dport+443+or+not+state+new)&limit=3 HTTP/1.1\r\nHost: softdpu\r\n\r\n",
		"POST /v1/flows/kill HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 15\r\n\r\nfilter=dport+53",
		"POST /v1/reload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"GET /v1/drops?all=1 HTTP/1.0\r\n\r\n",
		"HEAD //v1/../v1/rules?all=%zz;x=1 HTTP/1.1\r\nHost: x\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/passes HTTP/1.1\r\nHost: x\r\n\r\n",
		"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
		"GET /v1/status HTTP/1.1\r\nHost: x\r\nExpect: more\r\n\r\n",
		"\x16\x03\x01\x02\x00\x01\x00", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, bytesIn []byte) {
		var conn net.Conn
		testenv.Eventually(t, 20*time.Second, func() (err error) { // its queue may be full
			conn, err = net.Dial("unix", g.socket)
			return err
		})
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = conn.Write(bytesIn) // it may be closed already
		_ = conn.(*net.UnixConn).CloseWrite()
		out, err := io.ReadAll(conn)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("no end after %d bytes: %.200q", len(out), out)
		}
		answered(t, check, bytesIn, out)
		if strings.Contains(g.log.String(), "panic") {
			t.Fatalf("a handler panicked:\n%s", g.log)
		}
	})
}

// answered checks the first answer of what came back.
func answered(t *testing.T, check *apiChecker, in, out []byte) {
	t.Helper()
	if len(out) == 0 || bytes.HasPrefix(in, []byte("HEAD ")) {
		return
	}
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(out)), nil)
	for err == nil && resp.StatusCode == http.StatusContinue {
		_, rest, _ := bytes.Cut(out, []byte("\r\n\r\n"))
		if out = rest; len(out) == 0 {
			return
		}
		resp, err = http.ReadResponse(bufio.NewReader(bytes.NewReader(out)), nil)
	}
	if err != nil {
		t.Fatalf("answers %.200q: %v", out, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("answers %.200q: %v", out, err)
	}
	kind := resp.Header.Get("Content-Type")
	switch {
	case strings.HasPrefix(kind, "text/plain") && resp.StatusCode >= 400: // what is no HTTP
	case resp.StatusCode == http.StatusExpectationFailed && len(body) == 0: // package net/http answers by itself
	case kind != "application/json" || !json.Valid(body):
		t.Fatalf("answers %d with %q: %.200q", resp.StatusCode, kind, body)
	case resp.StatusCode >= 400:
		if err := check.check("GET", "/", resp.StatusCode, body); err != nil && !strings.Contains(err.Error(), "does not say") {
			t.Fatal(err)
		}
	}
}
