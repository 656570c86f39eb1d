package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// An event is what cmd/test2json documents.
type event struct {
	Time    *time.Time `json:",omitempty"`
	Action  string
	Package string   `json:",omitempty"`
	Test    string   `json:",omitempty"`
	Elapsed *float64 `json:",omitempty"`
	Output  string   `json:",omitempty"`
}

// A listener reads what a machine says on its line of results, writes it as events of tests, and judges it.
type listener struct {
	out      *json.Encoder
	kernel   kernel
	jobs     map[string]job
	left     map[string]bool // jobs that have not ended
	done     bool
	problems []string
}

func newListener(out io.Writer, k kernel, jobs []job) *listener {
	l := &listener{out: json.NewEncoder(out), kernel: k, jobs: map[string]job{}, left: map[string]bool{}}
	l.out.SetEscapeHTML(false)
	for _, j := range jobs {
		l.jobs[j.name], l.left[j.name] = j, true
	}
	return l
}

// listen reads until the machine ends. The error says what was not as it must be: all jobs have ended, each well,
// with the tests left out that must be, and the guest has said that it is done.
func (l *listener) listen(ctx context.Context, r io.Reader) error {
	lines := bufio.NewReaderSize(r, 1<<16)
	var now *translation
	for {
		line, err := lines.ReadString('\n')
		if said, ok := strings.CutPrefix(line, mark); ok {
			now = l.marked(ctx, now, strings.Fields(said))
		} else if now != nil && line != "" {
			io.WriteString(now.in, line)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			l.problems = append(l.problems, fmt.Sprintf("read results: %v", err))
			break
		}
	}
	if now != nil {
		l.conclude(now, -1)
	}
	for name := range l.left {
		l.problems = append(l.problems, name+" did not run")
	}
	if !l.done {
		l.problems = append(l.problems, "the guest did not come to its end")
	}
	if len(l.problems) == 0 {
		return nil
	}
	return errors.New(strings.Join(l.problems, "\n\t"))
}

// marked takes a mark. It returns the job that runs now, if any.
func (l *listener) marked(ctx context.Context, now *translation, words []string) *translation {
	switch {
	case len(words) == 2 && words[0] == markBegin && now == nil && l.left[words[1]]:
		now, err := l.translate(ctx, l.jobs[words[1]])
		if err != nil {
			l.problems = append(l.problems, err.Error())
			return nil
		}
		return now
	case len(words) == 3 && words[0] == markEnd && now != nil && now.job.name == words[1]:
		code, err := strconv.Atoi(words[2])
		if err != nil {
			code = -1
		}
		l.conclude(now, code)
		return nil
	case len(words) == 1 && words[0] == markDone && now == nil:
		l.done = true
	default:
		l.problems = append(l.problems, fmt.Sprintf("the guest says %q, which is not its turn", strings.Join(words, " ")))
	}
	return now
}

// A translation is the output of one job, on its way through test2json.
type translation struct {
	job   job
	pkg   string // as the summary shall call it
	start time.Time
	in    io.WriteCloser
	cmd   *exec.Cmd
	ended chan struct{}
	tests results
	err   error
}

func (l *listener) translate(ctx context.Context, j job) (*translation, error) {
	t := &translation{job: j, pkg: j.name + "@" + l.kernel.release, start: time.Now(), ended: make(chan struct{}), tests: results{}}
	t.cmd = exec.CommandContext(ctx, "go", "tool", "test2json", "-t", "-p", t.pkg)
	in, err := t.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := t.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start test2json: %w", err)
	}
	t.in = in
	go func() {
		defer close(t.ended)
		for d := json.NewDecoder(out); ; {
			var e event
			if err := d.Decode(&e); err != nil {
				if err != io.EOF {
					t.err = fmt.Errorf("read test2json: %w", err)
				}
				io.Copy(io.Discard, out)
				return
			}
			if t.tests.take(e) {
				l.out.Encode(e)
			}
		}
	}()
	return t, nil
}

// conclude judges a job, and says so as the go command would.
func (l *listener) conclude(t *translation, code int) {
	delete(l.left, t.job.name)
	t.in.Close()
	<-t.ended
	elapsed := time.Since(t.start).Seconds()
	var problems []string
	if err := t.cmd.Wait(); err != nil || t.err != nil {
		problems = append(problems, errors.Join(err, t.err).Error())
	}
	problems = append(problems, t.job.judge(code, t.tests)...)
	for _, p := range problems {
		l.problems = append(l.problems, t.job.name+": "+p)
		l.out.Encode(event{Action: "output", Package: t.pkg, Output: fmt.Sprintf("FAIL\t%s\t%s\n", t.pkg, p)})
	}
	action := "pass"
	if len(problems) > 0 {
		action = "fail"
	} else {
		l.out.Encode(event{Action: "output", Package: t.pkg, Output: fmt.Sprintf("ok  \t%s\t%.3fs\n", t.pkg, elapsed)})
	}
	l.out.Encode(event{Action: action, Package: t.pkg, Elapsed: &elapsed})
}
