package main

import (
	"fmt"
	"io"
	"os"
)

// input is a file that a person names, or the standard input.
type input struct {
	io.Reader        // of its own type, so that an HTTP client closes nothing
	name      string // for messages
	file      *os.File
}

// openInput opens a file, - being the standard input. What says what it holds.
func openInput(env *Env, path, what string) (*input, error) {
	if path == "-" {
		return &input{Reader: env.Stdin, name: "standard input"}, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return &input{f, path, f}, nil
}

func (i *input) close() {
	if i.file != nil {
		i.file.Close() // it was only read
	}
}
