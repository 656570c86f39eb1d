package dataplane

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// numbers say what numbers in the maps mean: see Generation. Of a large policy they are megabytes, which most
// policies after it have in common, and so stand in a file of their own beside the state: one of two by turns,
// so that the one that the state names is whole whenever somebody dies.
type numbers struct {
	file    int             // which one, from 1; 0 = none
	text    json.RawMessage // nil: nobody has said
	written json.RawMessage // in that file
}

// MarshalJSON writes which file it is.
func (n numbers) MarshalJSON() ([]byte, error) { return json.Marshal(n.file) }

// UnmarshalJSON reads that; in states of versions before, the numbers themselves stand in its place.
func (n *numbers) UnmarshalJSON(text []byte) error {
	*n = numbers{}
	if bytes.HasPrefix(text, []byte("{")) {
		n.text = bytes.Clone(text)
		return nil
	}
	return json.Unmarshal(text, &n.file)
}

func numbersFile(state string, n int) string { return fmt.Sprintf("%s-numbers-%d", state, n) }

// read reads what the file beside a state holds.
func (n *numbers) read(state string) (err error) {
	if n.file == 0 {
		return nil
	}
	if n.text, err = os.ReadFile(numbersFile(state, n.file)); err != nil {
		return fmt.Errorf("read what numbers mean: %w", err)
	}
	n.written = n.text
	return nil
}

// write writes what has changed into the other file, which the state has to name then.
func (n *numbers) write(state string) error {
	if n.text == nil || bytes.Equal(n.text, n.written) {
		return nil
	}
	next := 1
	if n.file == 1 {
		next = 2
	}
	if err := os.WriteFile(numbersFile(state, next), n.text, 0o600); err != nil {
		return fmt.Errorf("write what numbers mean: %w", err)
	}
	n.file, n.written = next, n.text
	return nil
}

// removeNumbers takes the files of a state away.
func removeNumbers(state string) {
	for i := 1; i <= 2; i++ {
		os.Remove(numbersFile(state, i))
	}
}
