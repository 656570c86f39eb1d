package firewall

import "github.com/softdpu/softdpu/firewall/mistake"

// Where something stands in a file that a person wrote, and what is wrong with it.
type (
	Pos    = mistake.Pos
	Error  = mistake.Error
	Errors = mistake.Errors
)

// Unknown makes the error for a word that is not among the known ones ([mistake.Unknown]).
func Unknown(p Pos, what, word string, known []string, otherwise string) Error {
	return mistake.Unknown(p, what, word, known, otherwise)
}
