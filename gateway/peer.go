package gateway

import (
	"context"
	"net"
	"net/http"
	"os"

	"golang.org/x/sys/unix"
)

// connKey is where a request's context holds its connection.
type connKey struct{}

// withConn is a server's ConnContext: handlers can ask who speaks.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// peerCred returns who opened the connection, by what the kernel noted then; false if that cannot be
// known.
func peerCred(ctx context.Context) (cred unix.Ucred, ok bool) {
	c, isUnix := ctx.Value(connKey{}).(*net.UnixConn)
	if !isUnix {
		return cred, false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return cred, false
	}
	var found *unix.Ucred
	if raw.Control(func(fd uintptr) { found, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }) != nil || err != nil {
		return cred, false
	}
	return *found, true
}

// peerUID returns the user who opened the connection; false if that cannot be known.
func peerUID(ctx context.Context) (uid uint32, ok bool) {
	cred, ok := peerCred(ctx)
	return cred.Uid, ok
}

// changes admits a request that changes the gateway: the group of the socket reads; root, and whom the
// daemon runs as, change.
func changes(handler http.HandlerFunc) http.HandlerFunc {
	return forRoot("change the gateway", handler)
}

// forRoot admits a request of root, or of whom the daemon runs as.
func forRoot(what string, handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if uid, ok := peerUID(req.Context()); !ok || !mayChange(uid) {
			refuse(w, http.StatusForbidden, apiError{Error: "only root may " + what, Hint: "run as root"})
			return
		}
		handler(w, req)
	}
}

func mayChange(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }
