package gateway

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/pipefile"
)

const (
	pipelineFile    = "pipeline.yaml"
	pipelineChanges = "changes.json"
	pipelineHeader  = "# applied by "
	pipelineFold    = 4 << 20 // bytes of changes that are kept beside a pipeline at least
)

// keptPipeline is what a start has of the pipeline in force: the text that was applied, and beside it what was changed
// since, a batch a line. When these are as large as the text, another text takes the place of both, so that no change writes
// more than twice what it says over time. What is written when a call returns outlives a loss of power.
type keptPipeline struct {
	dir     string
	least   int64  // bytes of changes that are kept at least; 0: pipelineFold
	extends string // the text that changes belong to, by its hash
	base    int64  // bytes of the text
	changes *os.File
	size    int64 // bytes of the changes
	broken  bool  // they end within a line, or extend another pipeline than the one in force
}

// keptChange is a line of the changes; the first line has nothing but Extends.
type keptChange struct {
	Extends string          `json:"extends,omitempty"`
	Pipe    string          `json:"pipe,omitempty"`
	At      time.Time       `json:"at,omitzero"`
	By      string          `json:"by,omitempty"`
	Comment string          `json:"comment,omitempty"`
	Batch   json.RawMessage `json:"batch,omitempty"`
}

func (k *keptPipeline) path(name string) string { return filepath.Join(k.dir, name) }

// keptHeader is the line above the text: who applied it, when, and why.
func keptHeader(a *appliedPipeline) string {
	header := pipelineHeader + a.by + " at " + a.at.UTC().Format(time.RFC3339Nano)
	if a.comment != "" {
		header += ": " + a.comment
	}
	return header + "\n"
}

// replace keeps a pipeline, without changes.
func (k *keptPipeline) replace(a *appliedPipeline, text []byte) error {
	k.broken = true // what is in force is not what is kept, until it is
	if err := makeStateDir(k.dir); err != nil {
		return err
	}
	whole := append([]byte(keptHeader(a)), text...)
	if err := replaceFile(k.path(pipelineFile), bytes.NewReader(whole)); err != nil {
		return err
	}
	k.extend(whole)
	err := os.Remove(k.path(pipelineChanges))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, syncDir(k.dir))
}

// extend has later changes belong to a text.
func (k *keptPipeline) extend(text []byte) {
	sum := sha256.Sum256(text)
	k.close()
	k.extends, k.base, k.size, k.broken = hex.EncodeToString(sum[:]), int64(len(text)), 0, false
}

func (k *keptPipeline) close() {
	if k.changes != nil {
		k.changes.Close() // what is in it is on the disk
		k.changes = nil
	}
}

// full tells whether another text is due.
func (k *keptPipeline) full() bool {
	return k.broken || k.size > max(cmp.Or(k.least, pipelineFold), k.base)
}

// add keeps a change.
func (k *keptPipeline) add(c *keptChange) (err error) {
	if k.changes == nil {
		if err := k.open(); err != nil {
			return err
		}
	}
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	n, err := k.changes.Write(append(line, '\n'))
	if err == nil {
		err = unix.Fdatasync(int(k.changes.Fd()))
	}
	if err != nil {
		k.broken = k.changes.Truncate(k.size) != nil
		return err
	}
	k.size += int64(n)
	return nil
}

// open begins the changes of a text, or goes on with them.
func (k *keptPipeline) open() error {
	f, err := os.OpenFile(k.path(pipelineChanges), os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if err := f.Truncate(k.size); err != nil {
		return errors.Join(err, f.Close())
	}
	if k.changes = f; k.size > 0 {
		return nil
	}
	line, err := json.Marshal(keptChange{Extends: k.extends})
	if err == nil {
		var n int
		n, err = f.Write(append(line, '\n'))
		k.size = int64(n)
	}
	if err = errors.Join(err, syncDir(k.dir)); err != nil {
		k.close() // and the next one begins anew
		k.size = 0
	}
	return err
}

// remove keeps nothing.
func (k *keptPipeline) remove() error {
	k.close()
	var errs []error
	for _, name := range []string{pipelineFile, pipelineChanges} {
		if err := os.Remove(k.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// load reads what is kept; nil: nothing is.
func (k *keptPipeline) load() (*appliedPipeline, error) {
	path := k.path(pipelineFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err == nil {
		err = ownedState(k.dir)
	}
	var info fs.FileInfo
	if err == nil {
		info, err = os.Stat(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the pipeline that was applied: %w", err)
	}
	a := &appliedPipeline{at: info.ModTime()}
	header, rest, _ := strings.Cut(string(text), "\n")
	who, comment, _ := strings.Cut(strings.TrimPrefix(header, pipelineHeader), ": ")
	by, at, _ := strings.Cut(who, " at ")
	a.by, a.comment = by, comment
	if at, err := time.Parse(time.RFC3339Nano, at); err == nil {
		a.at = at
	}
	if a.parsed, _, err = pipefile.Parse(path, []byte("\n"+rest)); err != nil { // lines count as in the file
		return nil, fmt.Errorf("read the pipeline that was applied: %w: move %s away to start without", err, path)
	}
	k.extend(text)
	if a.parsed, err = k.replay(a.parsed); err != nil {
		return nil, fmt.Errorf("read what the pipeline was changed to: %w: move %s away to start without", err, k.path(pipelineChanges))
	}
	return a, nil
}

// replay makes changes again. A line that was not written to its end is one whose caller has no answer.
func (k *keptPipeline) replay(parsed *pipe.Pipeline) (*pipe.Pipeline, error) {
	path := k.path(pipelineChanges)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return parsed, nil
	}
	if err != nil {
		return nil, err
	}
	editor := parsed.Editor()
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	number := 0
	for line := range bytes.Lines(whole) {
		number++
		fail := func(err error) (*pipe.Pipeline, error) { return nil, fmt.Errorf("%s:%d: %w", path, number, err) }
		var c keptChange
		if err := strictJSON(line, &c); err != nil {
			return fail(err)
		}
		if number == 1 {
			if c.Extends != k.extends {
				return parsed, os.Remove(path) // of the pipeline before this one
			}
			continue
		}
		n := parsed.Number(c.Pipe)
		if n < 0 {
			return fail(fmt.Errorf("there is no pipe %q", c.Pipe))
		}
		batch, err := pipefile.ParseEdits(path, c.Batch, parsed, n, "")
		if err != nil {
			return fail(err)
		}
		for i, done := range editor.Edit(n, batch) {
			if done.Err != nil {
				return fail(fmt.Errorf("change %d: %w", i+1, done.Err))
			}
		}
	}
	k.size = int64(len(whole))
	parsed = editor.Pipeline()
	_, err = parsed.Check()
	return parsed, err
}

// keptBatch is what was done of a batch, as a line of the changes has it.
func keptBatch(parsed *pipe.Pipeline, number int, batch []pipe.Edit, done []pipe.Edited) json.RawMessage {
	var b bytes.Buffer
	write := pipefile.EntryJSON(parsed, number)
	separator := byte('{')
	for _, c := range pipefile.Changes {
		within := byte('[')
		for i := range batch {
			if batch[i].Change != c.Change || done[i].Err != nil {
				continue
			}
			if within == '[' {
				b.WriteByte(separator)
				fmt.Fprintf(&b, "%q:", c.Name)
				separator = ','
			}
			b.WriteByte(within)
			write(&b, batch[i].Entry)
			within = ','
		}
		if within == ',' {
			b.WriteByte(']')
		}
	}
	if b.Len() == 0 {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	return b.Bytes()
}
