package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// stateDir is where a gateway keeps what outlives a boot: below STATE/KIND, NAME-HASH of the configuration's
// path, for root alone.
func stateDir(c *Config, kind string) string {
	path := c.File
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	sum := sha256.Sum256([]byte(path))
	return filepath.Join(c.State, kind, filepath.Base(path)+"-"+hex.EncodeToString(sum[:4]))
}

// makeStateDir makes such a directory.
func makeStateDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(filepath.Dir(dir)), 0o755); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return ownedState(dir)
}

// ownedState refuses such a directory if others could lay policies, or entries of sets, there.
func ownedState(dir string) error { return errors.Join(owned(filepath.Dir(dir)), owned(dir)) }

// owned refuses a directory that is not of whom the gateway runs as, or that others may write to.
func owned(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is no directory: remove it, or name another directory by `state`", dir)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d: it must belong to whom the gateway runs as", dir, st.Uid)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%s can be written by others: chmod 700 it", dir)
	}
	return nil
}

// replaceFile writes a file for its owner alone so that after a crash it is the old or the new one. Which of
// them, is certain after syncDir.
func replaceFile(path string, text io.Reader) error {
	next := path + ".new"
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		_ = os.Remove(next) // a disk that is full needs the room
	}
	return err
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
