// Package mistake is how the readers of files that people write tell of what is wrong in them: by place, with a remedy.
package mistake

import (
	"fmt"
	"sort"
	"strings"
	"unicode/utf8"
)

// Pos is a place in a file. Line and Column count from 1; Column counts characters.
type Pos struct {
	File   string
	Line   int
	Column int
	Source string // the whole line, without its end
}

// Errorf makes an error at p.
func (p Pos) Errorf(format string, args ...any) Error {
	return Error{File: p.File, Line: p.Line, Column: p.Column, Source: p.Source, Msg: shorten(fmt.Sprintf(format, args...))}
}

// shorten takes the middle out of a message that quotes a value which nobody would read to its end.
func shorten(msg string) string {
	const most, kept = 600, 200 // bytes; of each end
	if len(msg) <= most {
		return msg
	}
	return strings.ToValidUTF8(msg[:kept], "") + " ... " + strings.ToValidUTF8(msg[len(msg)-kept:], "")
}

// String renders file:line:column.
func (p Pos) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// Error is one mistake, or one warning, in a file that a person wrote. Line 0 stands for the file as
// a whole: it cannot be read, or is empty.
type Error struct {
	File   string
	Line   int
	Column int
	Msg    string
	Hint   string // the remedy, "" if none is known
	Source string // the line spoken of
}

// WithHint returns e with a remedy.
func (e Error) WithHint(format string, args ...any) Error {
	e.Hint = shorten(fmt.Sprintf(format, args...))
	return e
}

// Error renders e on one line, without the source line: file:line:column: message (hint).
func (e Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", e.Line, e.Column)
	}
	if e.File != "" {
		b.WriteString(": ")
	}
	b.WriteString(e.Msg)
	if e.Hint != "" {
		fmt.Fprintf(&b, " (%s)", e.Hint)
	}
	return b.String()
}

// Render renders e on several lines, with the source line and a caret below the place.
func (e Error) Render() string {
	var b strings.Builder
	b.WriteString(Error{File: e.File, Line: e.Line, Column: e.Column, Msg: e.Msg}.Error())
	if e.Line > 0 && strings.TrimSpace(e.Source) != "" {
		number := fmt.Sprintf("%d", e.Line)
		source, column := clip(e.Source, e.Column)
		fmt.Fprintf(&b, "\n  %s | %s", number, source)
		fmt.Fprintf(&b, "\n  %s | %s^", strings.Repeat(" ", len(number)), pad(source, column-1))
	}
	if e.Hint != "" {
		fmt.Fprintf(&b, "\n  = %s", e.Hint)
	}
	return b.String()
}

// Width of a source line in a message, in characters.
const sourceWidth = 120

// clip shortens a long source line to a window around column and returns the column inside it.
// Control characters become spaces, so that a file cannot speak to the terminal.
func clip(source string, column int) (string, int) {
	runes := []rune(source)
	for i, r := range runes {
		if r < ' ' && r != '\t' || r == utf8.RuneError || r >= 0x7f && r < 0xa0 {
			runes[i] = ' '
		}
	}
	if len(runes) <= sourceWidth {
		return string(runes), column
	}
	start := min(max(column-1-sourceWidth/2, 0), len(runes)-sourceWidth)
	return string(runes[start : start+sourceWidth]), column - start
}

// pad returns white space as wide as the first n characters of source, keeping its tabs.
func pad(source string, n int) string {
	var b strings.Builder
	for _, r := range source {
		if n <= 0 {
			break
		}
		n--
		if r == '\t' {
			b.WriteRune('\t')
		} else {
			b.WriteByte(' ')
		}
	}
	b.WriteString(strings.Repeat(" ", max(n, 0)))
	return b.String()
}

// Errors are the mistakes of a set of files, in order of file, line and column.
type Errors []Error

// Error renders all errors on several lines each.
func (e Errors) Error() string {
	parts := make([]string, len(e))
	for i := range e {
		parts[i] = e[i].Render()
	}
	return strings.Join(parts, "\n")
}

// maxErrors is how many mistakes are told of at once: a list in the wrong format would tell as many as it has lines.
const maxErrors = 100

// Sorted orders errors by place, files in the order given and then by name, and takes out repetitions. What is
// beyond the first hundred it only counts.
func (e Errors) Sorted(files ...string) Errors {
	rank := make(map[string]int, len(files))
	for i, f := range files {
		rank[f] = i + 1
	}
	place := func(f string) int {
		if r := rank[f]; r != 0 {
			return r
		}
		return len(files) + 1
	}
	sort.SliceStable(e, func(i, j int) bool {
		a, b := e[i], e[j]
		switch {
		case place(a.File) != place(b.File):
			return place(a.File) < place(b.File)
		case a.File != b.File:
			return a.File < b.File
		case a.Line != b.Line:
			return a.Line < b.Line
		}
		return a.Column < b.Column
	})
	out := e[:0]
	for i := range e {
		if i == 0 || e[i] != e[i-1] {
			out = append(out, e[i])
		}
	}
	if more := len(out) - maxErrors; more > 0 {
		last := Error{File: out[maxErrors].File, Msg: fmt.Sprintf("%d more are not shown", more), Hint: "correct those above first"}
		out = append(out[:maxErrors], last)
	}
	return out
}
