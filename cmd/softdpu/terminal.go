package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A screen is a terminal that shows one picture after the other, on its alternate screen, and takes
// single keys. What stood there before is back after close.
type screen struct {
	in, out *os.File
	old     *unix.Termios // of in; nil if that is no terminal
}

// Control sequences of ECMA-48 and xterm, which every terminal of today understands.
const (
	enterAlternate = "\x1b[?1049h\x1b[?25l" // and hide the cursor
	leaveAlternate = "\x1b[?25h\x1b[?1049l"
	cursorHome     = "\x1b[H"
	clearToEOL     = "\x1b[K"
	clearBelow     = "\x1b[J"
)

// openScreen takes the terminal at out. Keys come from in, if that is a terminal: at once, and without
// an echo. Ctrl-C goes on being a signal.
func openScreen(in, out *os.File) (*screen, error) {
	s := &screen{in: in, out: out}
	if in != nil && isTerminal(in) {
		old, err := unix.IoctlGetTermios(int(in.Fd()), unix.TCGETS)
		if err != nil {
			return nil, fmt.Errorf("read the terminal's mode: %w", err)
		}
		now := *old
		now.Lflag &^= unix.ICANON | unix.ECHO
		now.Cc[unix.VMIN], now.Cc[unix.VTIME] = 0, 0 // a read returns with what there is
		if err := unix.IoctlSetTermios(int(in.Fd()), unix.TCSETS, &now); err != nil {
			return nil, fmt.Errorf("set the terminal's mode: %w", err)
		}
		s.old = old
	}
	_, err := out.WriteString(enterAlternate)
	if err != nil {
		err = fmt.Errorf("write to the terminal: %w", err)
	}
	return s, err
}

// key returns the next key that was pressed, 0 for none.
func (s *screen) key() byte {
	if s.old == nil {
		return 0
	}
	var b [1]byte
	if n, err := unix.Read(int(s.in.Fd()), b[:]); n != 1 || err != nil {
		return 0
	}
	return b[0]
}

// close gives the terminal back.
func (s *screen) close() {
	_, _ = s.out.WriteString(leaveAlternate) // a terminal that is gone needs nothing back
	if s.old != nil {
		_ = unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETS, s.old)
	}
}

// terminalSize returns 0, 0 if f is no terminal.
func terminalSize(f *os.File) (rows, columns int) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(size.Row), int(size.Col)
}
