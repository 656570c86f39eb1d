package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// programs are those of the host that tests run.
var programs = []string{"sh", "cat", "sleep", "true", "umount", "unshare", "ip", "tc", "ethtool", "nft", "tcpdump"}

// binaries are what tests of the gateway would build of cmd/softdpu if they had a compiler, by flags for the linker:
// the version under test, one with another name, and one whose tables have another layout.
var binaries = map[string]string{
	"softdpu":              "",
	"softdpu-upgraded":     "-X main.buildVersion=upgraded",
	"softdpu-other-layout": "-X github.com/softdpu/softdpu/dataplane.layoutVersion=1000",
}

// A workbench builds what goes into machines, each thing once.
type workbench struct {
	options
	work  string            // folder, gone at the end
	built map[string]string // file by what it was built of
}

// module is this module's path.
const module = "github.com/softdpu/softdpu"

// image writes the root of a machine: process 1, the plan, modules, test programs, the programs of the host that
// they run, and the source, for its test data.
func (b *workbench) image(ctx context.Context, k kernel, modules []string, jobs []job) (string, error) {
	root, err := b.output(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return "", fmt.Errorf("find this module's source: %w", err)
	}
	var content bytes.Buffer
	a := newArchive(&content)
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if target, err := os.Readlink("/" + name); err == nil {
			a.Link(name, target)
		}
	}
	p := plan{}
	for i, m := range modules {
		name := fmt.Sprintf("%03d-%s", i, filepath.Base(m))
		a.File(moduleDir[1:]+"/"+name, filepath.Join(k.modules, m))
		p.Modules = append(p.Modules, name)
	}
	init, err := b.build(ctx, root, "build", "", "./testenv/vm", "")
	if err != nil {
		return "", err
	}
	a.File("init", init)
	placed := map[string]bool{}
	for _, j := range jobs {
		file, err := b.build(ctx, root, "test", j.tags, "./"+j.folder, "")
		if err != nil {
			return "", err
		}
		name := filepath.Base(file)
		if !placed[name] {
			placed[name] = true
			a.File(testDir[1:]+"/"+name, file)
		}
		p.Steps = append(p.Steps, j.step(testDir+"/"+name))
	}
	for name, flags := range binaries {
		file, err := b.build(ctx, root, "build", "", "./cmd/softdpu", flags)
		if err != nil {
			return "", err
		}
		a.File(builtDir[1:]+"/"+name, file)
	}
	all := slices.Clone(programs)
	for _, j := range jobs {
		if j.beside != "" {
			beside := os.Getenv(j.beside)
			a.File(builtDir[1:]+"/"+filepath.Base(beside), beside) // its own place may be hidden there, as /tmp is
			libraries, err := loaded(ctx, beside)
			if err != nil {
				return "", err
			}
			all = append(all, libraries...)
			// What libxdp loads into the kernel lies beside it.
			objects, _ := filepath.Glob("/usr/lib/*/bpf/*.o")
			all = append(all, objects...)
		}
	}
	if err := addPrograms(ctx, a, all); err != nil {
		return "", err
	}
	if err := addSource(a, root); err != nil {
		return "", err
	}
	a.Bytes("etc/passwd", 0o644, []byte("root:x:0:0:root:/tmp:/bin/sh\ntcpdump:x:100:65534::/nonexistent:/bin/false\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"))
	a.Bytes("etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n"))
	a.Bytes("etc/nsswitch.conf", 0o644, []byte("passwd: files\ngroup: files\nhosts: files\n"))
	a.Bytes("etc/hosts", 0o644, []byte("127.0.0.1 localhost\n::1 localhost\n"))
	text, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	a.Bytes(planFile[1:], 0o644, text)
	if err := a.Close(); err != nil {
		return "", fmt.Errorf("write the machine's root: %w", err)
	}
	file := filepath.Join(b.work, k.release+".cpio")
	if err := os.WriteFile(file, content.Bytes(), 0o644); err != nil {
		return "", fmt.Errorf("write the machine's root: %w", err)
	}
	return file, nil
}

// build builds a static program, or the tests of a package, and returns its file.
func (b *workbench) build(ctx context.Context, root, verb, tags, pkg, ldflags string) (string, error) {
	args := []string{verb, "-buildvcs=false", "-tags=" + tags, "-ldflags=" + ldflags}
	if verb == "test" {
		args = append(args, "-c")
	}
	key := strings.Join(append(args, pkg), " ")
	if file, ok := b.built[key]; ok {
		return file, nil
	}
	file := filepath.Join(b.work, fmt.Sprintf("%02d-%s", len(b.built), filepath.Base(pkg)))
	cmd := exec.CommandContext(ctx, "go", append(args, "-o", file, pkg)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w: %s", pkg, err, out)
	}
	b.built[key] = file
	return file, nil
}

func (b *workbench) output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	return strings.TrimSpace(string(out)), withStderr(err)
}

// addPrograms adds programs of the host, and other files named by paths, at their places there, with the libraries that they load.
func addPrograms(ctx context.Context, a *archive, names []string) error {
	files := map[string]string{} // by their place
	for _, name := range names {
		path := name
		if !filepath.IsAbs(name) {
			var err error
			if path, err = program(name); err != nil {
				return err
			}
		}
		all, err := loaded(ctx, path)
		if err != nil {
			return err
		}
		for _, file := range append(all, path) {
			place, err := placeOf(file)
			if err != nil {
				return err
			}
			files[place] = file
		}
	}
	for _, place := range slices.Sorted(maps.Keys(files)) {
		a.File(place, files[place])
	}
	return nil
}

// loaded returns the files that a program loads.
func loaded(ctx context.Context, path string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "ldd", path)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if static := errors.As(err, new(*exec.ExitError)); err != nil && !static { // ldd says so of a program without libraries
		return nil, fmt.Errorf("list libraries of %s: %w", path, err)
	}
	return libraries(string(out)), nil
}

// placeOf returns where a file belongs in the archive: its own name in its folder's true one, since /lib may be
// a link there too.
func placeOf(file string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(file))
	if err != nil {
		return "", fmt.Errorf("find %s: %w", file, err)
	}
	return strings.TrimPrefix(filepath.Join(dir, filepath.Base(file)), "/"), nil
}

// libraries returns the files that ldd names: "NAME => FILE (ADDRESS)", or for the loader "FILE (ADDRESS)".
func libraries(ldd string) []string {
	var all []string
	for line := range strings.Lines(ldd) {
		line, _, _ = strings.Cut(line, " (0x")
		if _, file, ok := strings.Cut(line, " => "); ok {
			line = file
		}
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") {
			all = append(all, line)
		}
	}
	return all
}

// addSource adds the module's source, without what was built of it.
func addSource(a *archive, root string) error {
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case e.IsDir() && (name == ".git" || name == "bin" || name == "dist"):
			return filepath.SkipDir
		case e.Type().IsRegular() && !strings.HasSuffix(name, ".test"):
			a.File(sourceDir[1:]+"/"+filepath.ToSlash(name), path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("copy the source: %w", err)
	}
	return nil
}
