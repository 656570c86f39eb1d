package testenv

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Transfer is bulk data that arrived whole.
type Transfer struct {
	Bytes    int64
	SHA256   [sha256.Size]byte // computed by both ends and compared
	Duration time.Duration     // from the first connect to the receiver's receipt
}

// BitsPerSecond is the mean rate of the payload.
func (t Transfer) BitsPerSecond() float64 {
	if t.Duration <= 0 {
		return 0
	}
	return float64(t.Bytes) * 8 / t.Duration.Seconds()
}

// patternBlock is large enough for few system calls, and no power of two times any MSS.
const patternBlock = 64 << 10

// A pattern is a stream of a given length that differs in every block, so that a receiver notices
// what is lost, doubled, reordered or changed. Equal seeds and lengths give equal streams.
type pattern struct {
	block [patternBlock]byte
	next  uint64 // number of the block
	rest  int64  // bytes to come
	have  []byte // of the current block
}

func newPattern(seed uint64, length int64) *pattern {
	p := &pattern{rest: length}
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	rand.NewChaCha8(key).Read(p.block[:])
	return p
}

// Read implements io.Reader.
func (p *pattern) Read(b []byte) (int, error) {
	n := 0
	for n < len(b) && p.rest > 0 {
		if len(p.have) == 0 {
			binary.LittleEndian.PutUint64(p.block[:], p.next)
			p.next++
			p.have = p.block[:min(patternBlock, p.rest)]
		}
		m := copy(b[n:], p.have)
		p.have = p.have[m:]
		p.rest -= int64(m)
		n += m
	}
	if n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// A receipt is what the sink answers when the sender has closed its side: bytes, then their hash.
type receipt [8 + sha256.Size]byte

func newReceipt(bytes int64, sum []byte) (r receipt) {
	binary.BigEndian.PutUint64(r[:], uint64(bytes))
	copy(r[8:], sum)
	return r
}

// A Sink takes TCP connections, reads each to its end, and answers with the number of bytes and
// their SHA-256.
type Sink struct {
	listener net.Listener
	bytes    atomic.Int64
	conns    connections
}

// ServeSink starts a sink in the namespace. Port 0 takes a free one.
func (n *Namespace) ServeSink(ctx context.Context, address netip.AddrPort) (*Sink, error) {
	l, err := n.Listen(ctx, "tcp", address.String())
	if err != nil {
		return nil, fmt.Errorf("serve sink in %s: %w", n.name, err)
	}
	s := &Sink{listener: l}
	s.conns.serve(l, s.take)
	return s, nil
}

// Addr is where the sink listens.
func (s *Sink) Addr() netip.AddrPort { return s.listener.Addr().(*net.TCPAddr).AddrPort() }

// Bytes returns how many bytes have arrived over all connections so far.
func (s *Sink) Bytes() int64 { return s.bytes.Load() }

// Close stops listening, closes the connections and waits for their goroutines.
func (s *Sink) Close() error { return s.conns.close(s.listener) }

func (s *Sink) take(c net.Conn) {
	hash := sha256.New()
	buf := make([]byte, 256<<10)
	var total int64
	for {
		n, err := c.Read(buf)
		hash.Write(buf[:n])
		total += int64(n)
		s.bytes.Add(int64(n))
		if err == io.EOF {
			break
		}
		if err != nil {
			return // the sender sees that no receipt comes
		}
	}
	r := newReceipt(total, hash.Sum(nil))
	_, _ = c.Write(r[:])
}

// SendTo sends that many bytes, drawn from the seed, to a Sink over TCP, and returns once the sink
// has confirmed number and hash. The context's end breaks the transfer off.
func (n *Namespace) SendTo(ctx context.Context, sink netip.AddrPort, bytes int64, seed uint64) (Transfer, error) {
	start := time.Now()
	c, err := n.Dial(ctx, "tcp", sink.String())
	if err != nil {
		return Transfer{}, fmt.Errorf("send to sink: %w", err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	hash := sha256.New()
	// io.CopyBuffer would let TCPConn.ReadFrom choose 32 KiB pieces.
	buf := make([]byte, patternBlock)
	for src := newPattern(seed, bytes); ; {
		m, err := src.Read(buf)
		if err == io.EOF {
			break
		}
		hash.Write(buf[:m])
		if _, err := c.Write(buf[:m]); err != nil {
			return Transfer{}, fmt.Errorf("send to sink %s: %w", sink, orCause(ctx, err))
		}
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return Transfer{}, fmt.Errorf("end transfer to sink %s: %w", sink, err)
	}
	var got receipt
	if _, err := io.ReadFull(c, got[:]); err != nil {
		return Transfer{}, fmt.Errorf("read receipt of sink %s: %w", sink, orCause(ctx, err))
	}
	t := Transfer{Bytes: bytes, Duration: time.Since(start)}
	hash.Sum(t.SHA256[:0])
	if got != newReceipt(bytes, t.SHA256[:]) {
		return Transfer{}, fmt.Errorf("send to sink %s: %d bytes sent, %d arrived, hashes differ",
			sink, bytes, binary.BigEndian.Uint64(got[:]))
	}
	return t, nil
}

// orCause tells the context's end rather than the deadline that carried it out.
func orCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return err
}

// connections are what a TCP server has open.
type connections struct {
	mu     sync.Mutex
	closed bool
	open   map[net.Conn]struct{}
	wg     sync.WaitGroup
}

// serve accepts in a goroutine, and runs take in one for each connection, which it closes after.
func (s *connections) serve(l net.Listener, take func(net.Conn)) {
	s.open = map[net.Conn]struct{}{}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			if !s.add(c) {
				c.Close()
				return
			}
			s.wg.Go(func() {
				defer s.drop(c)
				take(c)
			})
		}
	})
}

func (s *connections) add(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.open[c] = struct{}{}
	return true
}

func (s *connections) drop(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
	c.Close()
}

func (s *connections) close(l net.Listener) error {
	err := l.Close()
	s.mu.Lock()
	s.closed = true
	for c := range s.open {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return err
}
