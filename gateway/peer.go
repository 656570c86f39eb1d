package gateway

import (
	"context"
	"net"
	"net/http"

	"golang.org/x/sys/unix"
)

// peerKey finds in a request's context whom its connection belongs to.
type peerKey struct{}

// withPeer keeps the credentials with which the other end of a control connection connected.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil || credErr != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, cred)
}

// peerUID returns the user who asks, and false if the kernel did not say.
func peerUID(req *http.Request) (uid uint32, known bool) {
	cred, known := req.Context().Value(peerKey{}).(*unix.Ucred)
	if !known {
		return 0, false
	}
	return cred.Uid, true
}
