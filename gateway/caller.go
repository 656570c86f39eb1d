package gateway

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/user"
	"strconv"
	"strings"
)

// A caller is who asks for a change. The zero value is nobody: the gateway itself, or a signal, which
// does not tell.
type caller struct {
	User  string  // by the credentials of the connection
	Login string  // as whom that user has logged in, if as another: who types sudo is root
	UID   *uint32 // of User
}

// peerCaller returns who opened the connection of a request.
func peerCaller(ctx context.Context) caller {
	cred, ok := peerCred(ctx)
	if !ok {
		return caller{}
	}
	c := caller{User: userName(cred.Uid), UID: &cred.Uid}
	// The process waits for the answer, so its number is still its own.
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/loginuid", cred.Pid))
	if err != nil || cred.Pid == 0 {
		return c
	}
	login, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err == nil && login != math.MaxUint32 && uint32(login) != cred.Uid {
		c.Login = userName(uint32(login))
	}
	return c
}

// userName is the name of a user, or the number of one without.
func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

// args are the caller for a line of the log.
func (c *caller) args() (args []any) {
	if c.User != "" {
		args = append(args, "user", c.User)
	}
	if c.Login != "" {
		args = append(args, "login", c.Login)
	}
	return args
}
