package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// Bounds of what a server takes from those who ask, and how long it waits for them.
const (
	maxHeader     = 64 << 10  // bytes of the first line and the header
	maxBody       = 64 << 10  // bytes
	maxSetBody    = 16 << 20  // bytes of a change of a set: 100,000 ranges of IPv6 addresses in JSON
	maxListBody   = 128 << 20 // bytes of a list that replaces a set: millions of entries
	askPatience   = 10 * time.Second
	idlePatience  = 2 * time.Minute
	readerPatient = 30 * time.Second // without taking a byte of its answer
)

// bodyLimit is how many bytes a body may have. Only who may change a set needs much.
func bodyLimit(req *http.Request) int64 {
	uid, ok := peerUID(req.Context())
	if ok && mayChange(uid) && strings.HasPrefix(req.URL.Path, "/v1/sets/") {
		if strings.HasSuffix(req.URL.Path, "/replace") {
			return maxListBody
		}
		return maxSetBody
	}
	if ok && mayChange(uid) && (req.URL.Path == "/v1/pipeline" || req.URL.Path == "/v1/pipeline/entries") {
		return maxListBody
	}
	return maxBody
}

// readBody takes the body of a request before a handler sees it, so that no handler waits for who sends it. If
// the answer is false it has been refused.
func readBody(w http.ResponseWriter, req *http.Request, patience time.Duration) bool {
	if req.Body == nil || req.Body == http.NoBody {
		return true
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(patience)) // a writer in a test has none
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, bodyLimit(req)))
	if err == nil { // else the server would wait for the rest
		_ = control.SetReadDeadline(time.Time{})
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		refuse(w, http.StatusRequestEntityTooLarge, apiError{Error: fmt.Sprintf("the body is larger than %d KiB", tooLarge.Limit>>10), Hint: "no question needs so much"})
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		refuse(w, http.StatusRequestTimeout, apiError{Error: fmt.Sprintf("the body did not come within %s", patience), Hint: "send it at once"})
	case err != nil:
		w.Header().Set("Connection", "close")
		refuse(w, http.StatusBadRequest, apiError{Error: "read the body: " + err.Error(), Hint: "send as much as Content-Length says"})
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	return err == nil
}

// A patient writer breaks off an answer once the reader has taken nothing for a while. An answer may take as long
// as it likes to be made.
type patient struct {
	http.ResponseWriter
}

func (p patient) await() {
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(readerPatient)) // a writer in a test has none
}

// Write waits for the reader at most that long.
func (p patient) Write(b []byte) (int, error) {
	p.await()
	return p.ResponseWriter.Write(b)
}

// Flush is that of http.Flusher.
func (p patient) Flush() { _ = p.FlushError() }

// FlushError is what http.ResponseController calls.
func (p patient) FlushError() error {
	p.await()
	return http.NewResponseController(p.ResponseWriter).Flush()
}

// Unwrap gives http.ResponseController the writer below.
func (p patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }
