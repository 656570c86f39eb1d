package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// Exit codes. Scripts rely on them.
const (
	exitYes   = 0 // yes, or done
	exitNo    = 1 // the answer is no
	exitError = 2 // wrong use, no permission, unreadable file, no daemon
)

// A codeError ends the process with a code of its own. Any other error means exitError.
type codeError struct {
	code int
	err  error // nil: everything has been said
}

func (e *codeError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *codeError) Unwrap() error { return e.err }

// answerNo ends a verb whose answer is no. The error, if any, is printed; nil if the verb has printed
// the answer itself.
func answerNo(err error) error { return &codeError{exitNo, err} }

// A usageError is a command line that was not understood.
type usageError struct {
	cmd *cobra.Command
	err error
}

func (e *usageError) Error() string {
	return fmt.Sprintf("%v\nSee '%s --help'.", e.err, e.cmd.CommandPath())
}

func (e *usageError) Unwrap() error { return e.err }

// usagef makes a usageError. The text ends without a full stop.
func usagef(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{cmd, fmt.Errorf(format, args...)}
}

// outcome turns what a verb returned into the exit code and what remains to be said.
func outcome(err error) (code int, message string) {
	var coded *codeError
	switch {
	case err == nil:
		return exitYes, ""
	case !errors.As(err, &coded):
		return exitError, err.Error()
	case coded.err == nil:
		return coded.code, ""
	}
	return coded.code, err.Error()
}
