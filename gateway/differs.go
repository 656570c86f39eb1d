package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"maps"
	"slices"

	"github.com/softdpu/softdpu/firewall"
)

// FileStatus is a file of configuration or policy that is not as the running gateway has read it.
type FileStatus struct {
	File string `json:"file"`
	How  string `json:"how"` // changed, missing, new, or why it cannot be read
}

// How files differ from what was read.
const (
	fileChanged = "changed"
	fileMissing = "missing"
	fileNew     = "new" // in the directory of the policy
)

// changedFiles compares the files on disk with what was read of them: configuration, policy and sets.
func changedFiles(r *Ruleset) []FileStatus {
	c := r.config
	out := []FileStatus{}
	if c.Sum != [sha256.Size]byte{} {
		if how := compare(c.File, c.Sum); how != "" {
			out = append(out, FileStatus{c.File, how})
		}
	}
	for _, file := range slices.Sorted(maps.Keys(r.Sums)) {
		if how := compare(file, r.Sums[file]); how != "" {
			out = append(out, FileStatus{file, how})
		}
	}
	files, _ := firewall.PolicyFiles(c.Policy) // what is wrong there has been said of the files
	for _, file := range files {
		if _, read := r.Sums[file]; !read {
			out = append(out, FileStatus{file, fileNew})
		}
	}
	return out
}

// compare says how a file differs from its sum, "" if it does not.
func compare(file string, sum [sha256.Size]byte) string {
	text, err := firewall.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fileMissing
	case err != nil:
		return err.Error()
	case sha256.Sum256(text) != sum:
		return fileChanged
	}
	return ""
}

// hash is that of the policy as it was read: of all files in name order, those of sets too.
func (r *Ruleset) hash() string {
	return hashOf(r.Sums)
}

func hashOf(sums map[string][sha256.Size]byte) string {
	h := sha256.New()
	for _, file := range slices.Sorted(maps.Keys(sums)) {
		sum := sums[file]
		h.Write(sum[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}
