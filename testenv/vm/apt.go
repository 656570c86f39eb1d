package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// An apt is Debian's package tool with lists of packages of its own, so that the machine's stay as they are.
type apt struct {
	dir    string   // of lists and settings
	suites []string // of the mirror
}

// listsAge is how old lists may be before they are fetched anew.
const listsAge = 24 * time.Hour

// keyring holds Debian's keys where the package of this name, which every Debian has, puts them.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// update fetches the lists of packages unless they are fresh.
func (a *apt) update(ctx context.Context) error {
	stamp := filepath.Join(a.dir, "fetched")
	if info, err := os.Stat(stamp); err == nil && time.Since(info.ModTime()) < listsAge {
		return nil
	}
	targets, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN)", "Created-By: Packages").Output()
	if err != nil {
		return fmt.Errorf("ask apt-get for this machine's mirror: %w", withStderr(err))
	}
	list, err := sourcesList(string(targets), a.suites)
	if err != nil {
		return err
	}
	for _, name := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(a.dir, name), 0o755); err != nil {
			return fmt.Errorf("make a folder for lists of packages: %w", err)
		}
	}
	for name, text := range map[string]string{"sources.list": list, "status": ""} {
		if err := os.WriteFile(filepath.Join(a.dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write settings of apt-get: %w", err)
		}
	}
	say("fetching Debian's list of packages of %s", strings.Join(a.suites, ", "))
	if _, err := a.run(ctx, "", "apt-get", "-qq", "--error-on=any", "update"); err != nil {
		return err
	}
	if err := os.WriteFile(stamp, nil, 0o644); err != nil {
		return fmt.Errorf("note the lists' age: %w", err)
	}
	return nil
}

// show returns what the lists say of packages.
func (a *apt) show(ctx context.Context, packages ...string) (string, error) {
	return a.run(ctx, "", "apt-cache", append([]string{"show"}, packages...)...)
}

// download fetches packages, each package=version, into a folder. apt-get checks their sums.
func (a *apt) download(ctx context.Context, dir string, packages []string) error {
	_, err := a.run(ctx, dir, "apt-get", append([]string{"-qq", "download"}, packages...)...)
	return err
}

func (a *apt) run(ctx context.Context, dir, program string, args ...string) (string, error) {
	settings := []string{
		"Dir::State=" + a.dir, "Dir::State::lists=" + filepath.Join(a.dir, "lists"),
		"Dir::State::status=" + filepath.Join(a.dir, "status"),
		"Dir::Cache=" + a.dir, "Dir::Cache::archives=" + filepath.Join(a.dir, "archives"),
		"Dir::Etc::sourcelist=" + filepath.Join(a.dir, "sources.list"), "Dir::Etc::sourceparts=/dev/null",
		"Acquire::Languages=none", "Acquire::Retries=2",
		"APT::Sandbox::User=", // a folder of the user's is closed to apt's own
	}
	var all []string
	for _, s := range settings {
		all = append(all, "-o", s)
	}
	cmd := exec.CommandContext(ctx, program, append(all, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run %s %s: %w", program, strings.Join(args, " "), withStderr(err))
	}
	return string(out), nil
}

// sourcesList returns the sources of the suites, of the mirrors that targets, "URI origin" lines, name. The
// origin is known only to a machine whose own lists were fetched; without it an URI's last part is trusted.
func sourcesList(targets string, suites []string) (string, error) {
	var mirror, security string
	for line := range strings.Lines(targets) {
		uri, origin, _ := strings.Cut(strings.TrimSpace(line), " ")
		uri = strings.TrimSuffix(uri, "/")
		last := uri[strings.LastIndexByte(uri, '/')+1:]
		if origin != "Debian" && (origin != "" && origin != "$(ORIGIN)" || last != "debian" && last != "debian-security") {
			continue
		}
		switch {
		case strings.Contains(uri, "debian-security"):
			security = uri
		case mirror == "":
			mirror = uri
		}
	}
	if mirror == "" {
		return "", errors.New("find a mirror of Debian: this machine's apt sources have none")
	}
	signed := ""
	if _, err := os.Stat(keyring); err == nil {
		signed = "signed-by=" + keyring + " "
	}
	var lines []string
	for _, s := range suites {
		uri := mirror
		if strings.HasSuffix(s, "-security") {
			uri = security
		}
		if uri != "" {
			lines = append(lines, fmt.Sprintf("deb [%sarch=amd64] %s %s main\n", signed, uri, s))
		}
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), ""), nil
}

// withStderr adds what a program said on its way out.
func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}
