package dataplane

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// What numbers mean is whole whichever write is the last: the file that a state names is never the one that is
// being written. States of versions before have it in themselves.
func TestNumbers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.json")
	read := func() *state {
		t.Helper()
		s, err := readState(file)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := read()
	s.Plane = 3
	for i, text := range []string{`{"web":1}`, `{"web":1}`, `{"web":1,"dns":2}`, `{"dns":2}`} {
		if err := s.publish(uint32(i+1), json.RawMessage(text), nil); err != nil {
			t.Fatal(err)
		}
		if now := read(); string(now.Numbers.text) != text || now.Epoch != uint32(i+1) || now.Plane != 3 {
			t.Errorf("publication %d: %s is kept, epoch %d, plane %d", i, now.Numbers.text, now.Epoch, now.Plane)
		}
	}
	if s.Numbers.file != 1 {
		t.Errorf("three different ones end in file %d", s.Numbers.file)
	}
	// Dead between the two writes.
	half := *read()
	half.Numbers.text = json.RawMessage(`{"half":9}`)
	if err := half.Numbers.write(file); err != nil {
		t.Fatal(err)
	}
	s = read()
	if string(s.Numbers.text) != `{"dns":2}` {
		t.Errorf("after a death between the writes %s is kept", s.Numbers.text)
	}
	if err := s.publish(9, nil, nil); err != nil || string(read().Numbers.text) != `{"dns":2}` {
		t.Errorf("a policy that says nothing of numbers leaves %s (%v)", read().Numbers.text, err)
	}
	if err := os.Remove(numbersFile(file, s.Numbers.file)); err != nil {
		t.Fatal(err)
	}
	if s := read(); s.Plane != 0 || s.Numbers.text != nil {
		t.Errorf("without its numbers plane %d is gone on with, and %s", s.Plane, s.Numbers.text)
	}

	text, err := json.Marshal(map[string]any{"boot": s.Boot, "cookie": s.Cookie, "plane": 3, "numbers": map[string]int{"old": 5}})
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if s = read(); string(s.Numbers.text) != `{"old":5}` || s.Plane != 3 {
		t.Errorf("of a version before %s is kept, plane %d", s.Numbers.text, s.Plane)
	}
	if err := s.save(); err != nil || string(read().Numbers.text) != `{"old":5}` {
		t.Errorf("written again it is %s (%v)", read().Numbers.text, err)
	}
	removeNumbers(file)
	if _, err := os.Stat(numbersFile(file, 1)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is not taken away: %v", err)
	}
}
