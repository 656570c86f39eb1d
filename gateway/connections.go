package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// maxConnections are open at once at a server. A person has one for each verb, and each that follows something.
const maxConnections = 128

// connections keeps those of a server to a number, so that whoever opens them without end takes no descriptors
// that a reload needs. Where one more comes, the one that has waited for longest without a question under way
// makes room; if all have one, it is told to come back.
type connections struct {
	mu   sync.Mutex
	open map[net.Conn]*connection
}

type connection struct {
	asks  bool // a handler answers on it
	since time.Time
}

// busyAnswer is what a connection gets for which there is no room, and no handler.
const busyAnswer = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"

// state is a server's ConnState.
func (c *connections) state(conn net.Conn, s http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch s {
	case http.StateNew:
		if len(c.open) >= maxConnections && !c.makeRoom() {
			body := `{"error":"too many questions at once","hint":"try again when some are answered"}` + "\n"
			_ = conn.SetWriteDeadline(time.Now().Add(time.Second)) // its buffer is empty
			fmt.Fprintf(conn, busyAnswer, len(body), body)
			conn.Close()
			return
		}
		if c.open == nil {
			c.open = make(map[net.Conn]*connection)
		}
		c.open[conn] = &connection{since: time.Now()}
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
	}
}

// makeRoom closes the connection that has waited for longest.
func (c *connections) makeRoom() bool {
	var oldest net.Conn
	for conn, entry := range c.open {
		if !entry.asks && (oldest == nil || entry.since.Before(c.open[oldest].since)) {
			oldest = conn
		}
	}
	if oldest == nil {
		return false
	}
	oldest.Close()
	delete(c.open, oldest)
	return true
}

// answering notes that a handler answers on the connection of ctx, until done is called.
func (c *connections) answering(ctx context.Context) (done func()) {
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	set := func(asks bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if entry := c.open[conn]; entry != nil {
			entry.asks, entry.since = asks, time.Now()
		}
	}
	set(true)
	return func() { set(false) }
}
