package gateway

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/softdpu/softdpu/firewall"
)

// policyFiles tells whether the files of the running policy have changed since it was read. It reads
// them again only when their directory shows that they may have. It is safe for concurrent use.
type policyFiles struct {
	mu     sync.Mutex
	rules  *Ruleset // that what follows is about
	stamp  string
	differ bool
}

// changed reports whether the policy at path is another one than rules, or can no longer be read.
func (p *policyFiles) changed(path string, rules *Ruleset) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	// What changes while it is read has another stamp next time.
	stamp := stampFiles(path, rules)
	if p.rules == rules && p.stamp == stamp {
		return p.differ
	}
	policy, err := firewall.Load(path)
	p.rules, p.stamp, p.differ = rules, stamp, err != nil || policy.Hash != rules.Hash
	return p.differ
}

// stampFiles says what the file system shows of a policy without reading it: which files there are, and
// of each what changes with its content.
func stampFiles(path string, rules *Ruleset) string {
	files := append([]string{path}, rules.Files...)
	if entries, err := os.ReadDir(path); err == nil {
		for _, e := range entries {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	var b strings.Builder
	for _, name := range append(files, rules.SetFiles...) {
		info, err := os.Stat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			fmt.Fprintf(&b, "%s gone\n", name)
		case err != nil:
			fmt.Fprintf(&b, "%s %v\n", name, err)
		default:
			fmt.Fprintf(&b, "%s %d %d %s\n", name, info.Size(), info.ModTime().UnixNano(), info.Mode())
		}
	}
	return b.String()
}
