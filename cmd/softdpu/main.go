// Command softdpu is a DPU in software: `softdpu run` is the gateway's daemon, the other verbs talk to
// it or work without it. `softdpu help` lists them.
//
// Every verb stands in a file of its own as a function newXCommand(env), and root.go names them all.
// What a verb prints goes to env.Stdout; progress and complaints go to env.Stderr.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, processEnv(), os.Args[1:])
	stop()
	os.Exit(code)
}

// Env is what a verb may touch of the process that it runs in, so that tests can run it in theirs.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Width          func() int // columns of the terminal at Stdout; 0 if it is none
	Program        string     // how a person calls softdpu here, for command lines to copy
}

// run executes one command line, prints what went wrong, and returns the exit code: 0 yes or done, 1
// the answer is no, 2 wrong use, no permission, an unreadable file or no daemon.
func run(ctx context.Context, env *Env, args []string) int {
	root := newRootCommand(env)
	root.SetArgs(args)
	code, message := outcome(root.ExecuteContext(ctx))
	if message != "" {
		fmt.Fprintf(env.Stderr, "softdpu: %s\n", message)
	}
	return code
}

func processEnv() *Env {
	return &Env{
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Getenv:  os.Getenv,
		Width:   func() int { return terminalWidth(os.Stdout, os.Getenv("COLUMNS")) },
		Program: os.Args[0],
	}
}

// terminalWidth returns 0 if f is no terminal. COLUMNS, where it is set, is believed more than the
// terminal itself.
func terminalWidth(f *os.File, columns string) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	if n, err := strconv.Atoi(columns); err == nil && n > 0 {
		return n
	}
	return int(size.Col)
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
