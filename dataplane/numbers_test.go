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
		if err := s.publish(uint32(i+1), NumbersText{Whole: json.RawMessage(text)}, nil); err != nil {
			t.Fatal(err)
		}
		if now := read(); string(now.Numbers.text.Whole) != text || now.Epoch != uint32(i+1) || now.Plane != 3 {
			t.Errorf("publication %d: %s is kept, epoch %d, plane %d", i, now.Numbers.text, now.Epoch, now.Plane)
		}
	}
	if s.Numbers.file != 1 {
		t.Errorf("three different ones end in file %d", s.Numbers.file)
	}
	// Dead between the two writes.
	half := *read()
	half.Numbers.text.Whole = json.RawMessage(`{"half":9}`)
	if err := half.Numbers.write(file); err != nil {
		t.Fatal(err)
	}
	s = read()
	if string(s.Numbers.text.Whole) != `{"dns":2}` {
		t.Errorf("after a death between the writes %s is kept", s.Numbers.text)
	}
	if err := s.publish(9, NumbersText{}, nil); err != nil || string(read().Numbers.text.Whole) != `{"dns":2}` {
		t.Errorf("a policy that says nothing of numbers leaves %s (%v)", read().Numbers.text, err)
	}
	// What has changed since goes with the state; the file stays, and with what changes next it is another one.
	later := NumbersText{json.RawMessage(`{"dns":2}`), json.RawMessage(`{"ntp":[3,4]}`)}
	for range 2 {
		if err := s.publish(10, later, nil); err != nil || !read().Numbers.text.equal(later) || read().Numbers.file != 1 {
			t.Errorf("with what has changed since %s is kept in file %d (%v)", read().Numbers.text, read().Numbers.file, err)
		}
		s = read()
	}
	later = NumbersText{json.RawMessage(`{"dns":2,"ntp":3}`), json.RawMessage(`{"ntp":4}`)}
	if err := s.publish(11, later, nil); err != nil || !read().Numbers.text.equal(later) || read().Numbers.file != 2 {
		t.Errorf("written anew %s is kept in file %d (%v)", read().Numbers.text, read().Numbers.file, err)
	}
	if err := os.Remove(numbersFile(file, s.Numbers.file)); err != nil {
		t.Fatal(err)
	}
	if s := read(); s.Plane != 0 || s.Numbers.text.Whole != nil {
		t.Errorf("without its numbers plane %d is gone on with, and %s", s.Plane, s.Numbers.text)
	}

	text, err := json.Marshal(map[string]any{"boot": s.Boot, "cookie": s.Cookie, "plane": 3, "numbers": map[string]int{"old": 5}})
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if s = read(); string(s.Numbers.text.Whole) != `{"old":5}` || s.Plane != 3 {
		t.Errorf("of a version before %s is kept, plane %d", s.Numbers.text, s.Plane)
	}
	if err := s.save(); err != nil || string(read().Numbers.text.Whole) != `{"old":5}` {
		t.Errorf("written again it is %s (%v)", read().Numbers.text, err)
	}
	removeNumbers(file)
	if _, err := os.Stat(numbersFile(file, 1)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is not taken away: %v", err)
	}
}
