package firewall

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
)

// A policyHash tells policies apart by what was read, in the order of reading: policy files, and files of
// sets where they are named. Names of files are left out, so that the same policy has the same hash
// wherever it lies.
type policyHash struct{ sum hash.Hash }

func newPolicyHash() policyHash { return policyHash{sha256.New()} }

// add takes one file. Its length goes first, so that no text can move from one file to the next.
func (h policyHash) add(text []byte) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(text)))
	h.sum.Write(length[:])
	h.sum.Write(text)
}

// String returns the hash in hexadecimal digits.
func (h policyHash) String() string { return hex.EncodeToString(h.sum.Sum(nil)) }
