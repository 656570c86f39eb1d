package dataplane

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// NumbersText is what somebody says of numbers: see Generation. The zero value is nothing.
type NumbersText struct {
	Whole json.RawMessage // nil: nobody has said
	Since json.RawMessage // an object of what is other now than Whole has it; nil: nothing is
}

func (t NumbersText) equal(o NumbersText) bool {
	return bytes.Equal(t.Whole, o.Whole) && bytes.Equal(t.Since, o.Since)
}

// numbers say what numbers in the maps mean: see Generation. Of a large policy they are megabytes, which most
// policies after it have in common, and so stand in a file of their own beside the state: one of two by turns,
// so that the one that the state names is whole whenever somebody dies. What has changed since stands in the state.
type numbers struct {
	file    int // which one, from 1; 0 = none
	text    NumbersText
	written json.RawMessage // in that file
}

// savedNumbers stand in a state where there is more to say than which file it is. Versions that know of no more take it
// for the numbers themselves, and do not go on with them.
type savedNumbers struct {
	File  int             `json:"file"`
	Since json.RawMessage `json:"since"`
}

// MarshalJSON writes which file it is, and what has changed since it was written.
func (n numbers) MarshalJSON() ([]byte, error) {
	if n.text.Since == nil {
		return json.Marshal(n.file)
	}
	return json.Marshal(savedNumbers{n.file, n.text.Since})
}

// UnmarshalJSON reads that; in states of versions before, the numbers themselves stand in its place.
func (n *numbers) UnmarshalJSON(text []byte) error {
	*n = numbers{}
	if !bytes.HasPrefix(text, []byte("{")) {
		return json.Unmarshal(text, &n.file)
	}
	var saved savedNumbers
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	if saved.File == 0 {
		n.text.Whole = bytes.Clone(text)
		return nil
	}
	n.file = saved.File
	var since bytes.Buffer // the state is written for the eye
	if err := json.Compact(&since, saved.Since); err != nil {
		return err
	}
	n.text.Since = since.Bytes()
	return nil
}

func numbersFile(state string, n int) string { return fmt.Sprintf("%s-numbers-%d", state, n) }

// read reads what the file beside a state holds.
func (n *numbers) read(state string) (err error) {
	if n.file == 0 {
		return nil
	}
	if n.text.Whole, err = os.ReadFile(numbersFile(state, n.file)); err != nil {
		return fmt.Errorf("read what numbers mean: %w", err)
	}
	n.written = n.text.Whole
	return nil
}

// write writes what has changed into the other file, which the state has to name then.
func (n *numbers) write(state string) error {
	if n.text.Whole == nil || bytes.Equal(n.text.Whole, n.written) {
		return nil
	}
	next := 1
	if n.file == 1 {
		next = 2
	}
	if err := os.WriteFile(numbersFile(state, next), n.text.Whole, 0o600); err != nil {
		return fmt.Errorf("write what numbers mean: %w", err)
	}
	n.file, n.written = next, n.text.Whole
	return nil
}

// removeNumbers takes the files of a state away.
func removeNumbers(state string) {
	for i := 1; i <= 2; i++ {
		os.Remove(numbersFile(state, i))
	}
}
