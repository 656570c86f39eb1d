package firewall

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxSetErrors bounds the mistakes that are told of one set: a list of a million entries in the wrong
// format is one mistake.
const maxSetErrors = 20

func (l *loader) sets(n *Node) {
	taken := func(name string) (Pos, string) {
		if i, ok := l.setIndex[name]; ok {
			return l.policy.Sets[i].Pos, "a set"
		}
		return Pos{}, ""
	}
	for _, f := range l.entries(n, "sets", "set", taken) {
		s := Set{Name: f.Key, Pos: f.Pos}
		v := l.Fields(f.Value, "a set", keys["set"])
		s.Description = l.optionalText(v["description"], "description")
		types := []string{string(SetPrefix), string(SetPort), string(SetName), string(SetMAC)}
		if t := v["type"]; t != nil {
			s.Type = SetType(l.Choice(t, "type of set", types...))
		} else if f.Value.Kind == MapNode {
			l.Fail(f.Pos.Errorf("set %q does not say its type", f.Key).WithHint("it is one of: %s", strings.Join(types, ", ")))
		}
		switch entries, file := v["entries"], v["file"]; {
		case entries != nil && file != nil:
			l.Fail(file.Pos.Errorf("set %q has both entries and a file", f.Key).WithHint("leave one of them out"))
		case entries != nil:
			l.inlineSet(&s, entries)
		case file != nil:
			l.fileSet(&s, file)
		case f.Value.Kind == MapNode && len(v) > 0:
			l.Fail(f.Pos.Errorf("set %q has neither entries nor a file", f.Key).WithHint("add entries: [...] or file: PATH"))
		}
		l.setIndex[f.Key] = len(l.policy.Sets)
		l.policy.Sets = append(l.policy.Sets, s)
	}
}

func (l *loader) inlineSet(s *Set, n *Node) {
	for _, item := range l.List(n) {
		text, ok := l.Text(item, "an entry")
		if !ok || s.Type == "" {
			continue
		}
		if hint, err := s.add(text, item.Pos.Line); err != nil {
			l.Fail(item.Pos.Errorf("%v", err).WithHint("%s", hint))
		}
	}
}

// fileSet reads one entry a line; # begins a comment.
func (l *loader) fileSet(s *Set, n *Node) {
	path, ok := l.Text(n, "file")
	if !ok || s.Type == "" {
		return
	}
	if l.readFile == nil {
		l.Fail(n.Pos.Errorf("files of sets cannot be read here").WithHint("give the entries inline"))
		return
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(n.Pos.File), path)
	}
	s.File = path
	text, err := l.readFile(path)
	if err != nil {
		l.Fail(Unreadable(n.Pos, fmt.Sprintf("set %q", s.Name), err, "the path is relative to the policy file"))
		return
	}
	for _, e := range s.read(path, string(text)) {
		l.Fail(e)
	}
}

// ReadSet reads a set of a type from text as the files of sets have it; path is for errors, and what Place says.
func ReadSet(name string, t SetType, path, text string) (*Set, Errors) {
	s := &Set{Name: name, Type: t, File: path}
	if errs := s.read(path, text); len(errs) > 0 {
		return nil, errs
	}
	return s, nil
}

// read appends the entries of a text.
func (s *Set) read(path, text string) (errs Errors) {
	if e, bad := notText(path, text, strings.Split(strings.ReplaceAll(text, "\r", ""), "\n")); bad {
		return Errors{e}
	}
	rest, number := text, 0
	for rest != "" {
		var line string
		line, rest, _ = strings.Cut(rest, "\n")
		line = strings.TrimSuffix(line, "\r")
		number++
		entry, _, _ := strings.Cut(line, "#")
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		hint, err := s.add(entry, number)
		if err == nil {
			continue
		}
		if len(errs) == maxSetErrors {
			return append(errs, Pos{File: path, Line: number, Column: 1, Source: line}.Errorf("more than %d wrong entries; the rest of the file was not read", maxSetErrors))
		}
		column := utf8.RuneCountInString(line[:strings.Index(line, entry)]) + 1
		errs = append(errs, Pos{File: path, Line: number, Column: column, Source: line}.Errorf("%v", err).WithHint("%s", hint))
	}
	return errs
}

// add appends an entry that is written in a line of the set's file.
func (s *Set) add(text string, line int) (hint string, err error) {
	e, hint, err := ParseEntry(s.Type, text)
	if err == nil {
		s.put(e, line)
	}
	return hint, err
}

// setByName looks up a set that must be of one of the given types.
func (l *loader) setByName(n *Node, types ...SetType) *Set {
	name, ok := l.Text(n, "a set")
	if !ok {
		return nil
	}
	i, known := l.setIndex[name]
	if !known {
		l.Fail(Unknown(n.Pos, "set", name, slices.Sorted(maps.Keys(l.setIndex)), "declare it under `sets`"))
		return nil
	}
	l.used["set "+name] = true
	s := &l.policy.Sets[i]
	switch {
	case slices.Contains(types, s.Type) || s.Type == "":
		return s
	case s.Type == SetName:
		l.Fail(n.Pos.Errorf("sets of names are not available in rules of this version yet").WithHint("use a set of type prefix"))
	case s.Type == SetPort:
		l.Fail(n.Pos.Errorf("set %q holds ports", name).WithHint("use it in a service: {proto: tcp, port: {set: %s}}", name))
	case s.Type == SetMAC && slices.Contains(types, SetPrefix):
		l.Fail(n.Pos.Errorf("set %q holds MAC addresses, which are known of the source only", name).
			WithHint("name the destination by its addresses"))
	default:
		l.Fail(n.Pos.Errorf("set %q is of type %s, not %s", name, s.Type, types[0]))
	}
	return nil
}
