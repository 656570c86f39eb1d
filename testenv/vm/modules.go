package main

import (
	"fmt"
	"path"
	"strings"
)

// moduleFiles returns the files, within the folder of a kernel's modules, of the modules that are wanted and of
// all that they depend on, in an order in which they can be loaded. It reads modules.dep, where a line is
// a module's file, a colon and the files it depends on, the last to be loaded first; and modules.builtin,
// which names those that the kernel has in itself. A name that ends in "?" may be missing.
func moduleFiles(dep, builtin string, wanted []string) ([]string, error) {
	file, needs := map[string]string{}, map[string][]string{}
	for line := range strings.Lines(dep) {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		file[moduleName(name)] = name
		needs[name] = strings.Fields(rest)
	}
	within := map[string]bool{}
	for line := range strings.Lines(builtin) {
		within[moduleName(strings.TrimSpace(line))] = true
	}
	var order []string
	placed := map[string]bool{}
	place := func(name string) {
		if !placed[name] {
			placed[name] = true
			order = append(order, name)
		}
	}
	for _, w := range wanted {
		name, optional := strings.CutSuffix(w, "?")
		f, ok := file[moduleName(name)]
		switch {
		case ok:
			for i := len(needs[f]) - 1; i >= 0; i-- {
				place(needs[f][i])
			}
			place(f)
		case !within[moduleName(name)] && !optional:
			return nil, fmt.Errorf("find module %s: this kernel has none", name)
		}
	}
	return order, nil
}

// moduleName returns the name that a module's file stands for: to the kernel, dashes are underscores.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}
