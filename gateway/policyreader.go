package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/softdpu/softdpu/firewall"
)

// A policyReader reads policies: those of the files, and those that the history keeps. Of each it reads what differs from the
// one that it has read before: most do in a rule or two. The zero value is ready, and safe for concurrent use.
type policyReader struct {
	mu      sync.Mutex
	reading firewall.Reading
}

// readCandidate reads a policy once.
func readCandidate(c *Config) (*candidate, error) { return new(policyReader).read(c) }

// read reads the policy that the configuration names. Beside an error it returns what could be read.
func (p *policyReader) read(c *Config) (*candidate, error) {
	k := &candidate{config: c}
	defer k.sum()
	k.add(c.File, sourceConfig, c.Text)
	misnamed := func(err error) error {
		return firewall.Errors{firewall.Unreadable(c.PolicyPos, "policy", err, "policy names a file, or a directory of *.yaml files")}
	}
	paths, err := firewall.PolicyFiles(c.Policy)
	if err != nil {
		return k, misnamed(err)
	}
	var sources []firewall.Source
	for _, path := range paths {
		text, err := firewall.ReadFile(path)
		if err != nil {
			return k, misnamed(err)
		}
		k.add(path, sourcePolicy, text)
		sources = append(sources, firewall.Source{Name: path, Text: text})
	}
	err = p.parse(k, sources, func(path string) ([]byte, error) {
		text, err := firewall.ReadFile(path)
		if err == nil {
			k.add(path, sourceSet, text)
		}
		return text, err
	})
	return k, err
}

// reread reads configuration and policy from the files of a candidate whose texts are there.
func (p *policyReader) reread(k *candidate) (err error) {
	texts := make(map[string][]byte, len(k.files))
	var sources []firewall.Source
	for _, f := range k.files {
		texts[f.Path] = f.text
		switch f.Kind {
		case sourceConfig:
			if k.config, err = ParseConfig(f.Path, f.text); err != nil {
				return err
			}
			k.config.Sum, k.config.Text = sha256.Sum256(f.text), f.text
		case sourcePolicy:
			sources = append(sources, firewall.Source{Name: f.Path, Text: f.text})
		}
	}
	if k.config == nil {
		return errors.New("there is no configuration among the files")
	}
	return p.parse(k, sources, func(path string) ([]byte, error) {
		if text, kept := texts[path]; kept {
			return text, nil
		}
		return nil, fmt.Errorf("%s is not among the files", path)
	})
}

func (p *policyReader) parse(k *candidate, sources []firewall.Source, readFile func(string) ([]byte, error)) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k.policy, err = p.reading.Parse(sources, readFile)
	return err
}

// add takes a file in.
func (k *candidate) add(path, kind string, text []byte) {
	if slices.ContainsFunc(k.files, func(f sourceFile) bool { return f.Path == path }) {
		return // several sets may be of one file
	}
	k.files = append(k.files, sourceFile{Path: path, Kind: kind, Size: int64(len(text)), text: text})
}

// sum gives the files the hashes that reading them has made, and makes those that it has not.
func (k *candidate) sum() {
	for i := range k.files {
		f := &k.files[i]
		switch {
		case f.Sum != "":
			continue
		case f.Kind == sourceConfig:
			f.Sum = hex.EncodeToString(k.config.Sum[:])
			continue
		}
		sum, made := [sha256.Size]byte{}, false
		if k.policy != nil {
			sum, made = k.policy.Sums[f.Path]
		}
		if !made {
			sum = sha256.Sum256(f.text)
		}
		f.Sum = hex.EncodeToString(sum[:])
	}
}
