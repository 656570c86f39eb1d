package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// A kernel lies unpacked in a folder.
type kernel struct {
	release string // as `uname -r` says
	version string // of its packages
	image   string // file to boot
	modules string // folder with kernel/, modules.dep and modules.builtin
}

// A shelf is a folder with kernels: <series>/<version>/, whole or not there, and apt-<series>/ with the lists
// that they were found in.
type shelf struct{ dir string }

// kernel returns the newest kernel of a series that Debian offers. It downloads it unless the shelf has it. When
// the mirror cannot be asked, it is the newest that the shelf has.
func (s *shelf) kernel(ctx context.Context, of series) (kernel, error) {
	if runtime.GOARCH != "amd64" {
		return kernel{}, fmt.Errorf("find a kernel: this lab is for amd64, not %s", runtime.GOARCH)
	}
	had, hadErr := s.had(of)
	found, err := s.latest(ctx, of)
	switch {
	case err == nil:
		return found, nil
	case ctx.Err() == nil && hadErr == nil:
		say("taking Linux %s, which is in %s, since the mirror could not be asked: %v", had.release, s.dir, err)
		return had, nil
	}
	return kernel{}, err
}

// latest asks the mirror, by lists that may be a day old.
func (s *shelf) latest(ctx context.Context, of series) (kernel, error) {
	a := &apt{dir: filepath.Join(s.dir, "apt-"+of.name), suites: of.suites}
	if err := a.update(ctx); err != nil {
		return kernel{}, err
	}
	shown, err := a.show(ctx, metapackage)
	if err != nil {
		return kernel{}, err
	}
	r, err := newestRelease(shown, of.prefix)
	if err != nil {
		return kernel{}, err
	}
	place := filepath.Join(s.dir, of.name, r.version)
	if k, err := kernelIn(place); err == nil {
		return k, nil
	}
	if shown, err = a.show(ctx, "linux-image-"+r.name); err != nil {
		return kernel{}, err
	}
	say("downloading Linux %s", r.name)
	if err := fetch(ctx, a, r.needed(shown), place); err != nil {
		return kernel{}, err
	}
	k, err := kernelIn(place)
	if err == nil {
		s.forget(of, r.version)
	}
	return k, err
}

// had returns the newest kernel of the series on the shelf.
func (s *shelf) had(of series) (kernel, error) {
	best := kernel{}
	places, _ := filepath.Glob(filepath.Join(s.dir, of.name, "[0-9]*"))
	for _, place := range places {
		k, err := kernelIn(place)
		if err == nil && (best.release == "" || compareVersions(k.version, best.version) > 0) {
			best = k
		}
	}
	if best.release == "" {
		return best, fmt.Errorf("find a kernel in %s: there is none", s.dir)
	}
	return best, nil
}

// forget removes the kernels of the series that a newer one has replaced.
func (s *shelf) forget(of series, but string) {
	places, _ := filepath.Glob(filepath.Join(s.dir, of.name, "[0-9]*"))
	for _, place := range places {
		if filepath.Base(place) != but {
			os.RemoveAll(place)
		}
	}
}

// fetch downloads packages, unpacks them and indexes the modules.
func fetch(ctx context.Context, a *apt, packages []string, place string) (err error) {
	if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		return fmt.Errorf("make a folder for kernels: %w", err)
	}
	// Beside its place, so that it gets there whole, by a new name.
	tmp, err := os.MkdirTemp(filepath.Dir(place), ".new-")
	if err != nil {
		return fmt.Errorf("make a folder for a kernel: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := a.download(ctx, tmp, packages); err != nil {
		return err
	}
	files, _ := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if len(files) != len(packages) {
		return fmt.Errorf("download %s: %d files came", strings.Join(packages, " "), len(files))
	}
	tree := filepath.Join(tmp, "tree")
	for _, f := range files {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", f, tree).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w: %s", filepath.Base(f), err, out)
		}
	}
	// depmod looks below lib, whether the package says /lib or, as newer ones, /usr/lib.
	if _, err := os.Stat(filepath.Join(tree, "lib/modules")); err != nil {
		if err := os.Rename(filepath.Join(tree, "usr/lib"), filepath.Join(tree, "lib")); err != nil {
			return fmt.Errorf("find modules in %s: %w", strings.Join(packages, " "), err)
		}
	}
	releases, _ := filepath.Glob(filepath.Join(tree, "lib/modules/*"))
	if len(releases) != 1 {
		return fmt.Errorf("find modules in %s: there are %d folders of them", strings.Join(packages, " "), len(releases))
	}
	depmod, err := program("depmod")
	if err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, depmod, "-b", tree, filepath.Base(releases[0])).CombinedOutput(); err != nil {
		return fmt.Errorf("run depmod: %w: %s", err, out)
	}
	if err := os.Chmod(tree, 0o755); err != nil {
		return err
	}
	if err := os.Rename(tree, place); err != nil {
		return fmt.Errorf("put the kernel in its place: %w", err)
	}
	return nil
}

// kernelIn returns the kernel that lies in a folder of the shelf.
func kernelIn(place string) (kernel, error) {
	modules, _ := filepath.Glob(filepath.Join(place, "lib/modules/*/modules.dep"))
	if len(modules) != 1 {
		return kernel{}, errors.New("no kernel is in " + place)
	}
	k := kernel{version: filepath.Base(place), modules: filepath.Dir(modules[0])}
	k.release = filepath.Base(k.modules)
	for _, image := range []string{filepath.Join(place, "boot/vmlinuz-"+k.release), filepath.Join(k.modules, "vmlinuz")} {
		if _, err := os.Stat(image); err == nil {
			k.image = image
			return k, nil
		}
	}
	return kernel{}, errors.New("no image to boot is in " + place)
}

// program finds a program, which may be one of the administrator's that a user's PATH does not name.
func program(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("find the program %s: it is not installed; `make deps` does that", name)
}
