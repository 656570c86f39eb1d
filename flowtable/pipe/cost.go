package pipe

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// codeEntries is the most entries of a pipe that become instructions if a table could hold them.
const codeEntries = 2048

// fit makes the program small enough, and notes what each pipe takes.
func (c *compiler) fit() error {
	_, _, err := c.Instructions()
	return err
}

// hash is that of all that decides what the program does.
func (c *compiler) hash() (sum [32]byte) {
	h := sha256.New()
	for _, p := range c.Pipeline.Pipes {
		fmt.Fprintf(h, "%s %s %v ", p.Name, p.Kind, p.Fixed)
	}
	binary.Write(h, binary.LittleEndian, c.Memory.Entries)
	first, others, err := c.Instructions()
	if err != nil {
		return sum
	}
	fmt.Fprint(h, first, others)
	return [32]byte(h.Sum(nil))
}
