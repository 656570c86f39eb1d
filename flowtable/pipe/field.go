package pipe

// Field is something that pipes match on, and that actions may change.
type Field struct {
	Name  string
	Word  int    // first of its words in struct pipe_fields (abi_pipe.h)
	Bits  int    // 1 to 128
	Has   uint32 // enum pipe_has: what the packet must have for the field to be there
	Write bool   // actions may change it
	Help  string // one line for people
}

// Words are how many words of 32 bits the field takes.
func (f *Field) Words() int { return (f.Bits + 31) / 32 }
