package firewall

import (
	"strings"
	"unicode/utf8"
)

// byteOrders are what files begin with that are text, but not UTF-8.
var byteOrders = []struct{ mark, name string }{
	{"\xff\xfe\x00\x00", "UTF-32"}, {"\x00\x00\xfe\xff", "UTF-32"}, {"\xff\xfe", "UTF-16"}, {"\xfe\xff", "UTF-16"},
}

// notText returns the mistake of a file that is no UTF-8 text, given whole and in lines.
func notText(name, text string, lines []string) (e Error, bad bool) {
	for _, o := range byteOrders {
		if strings.HasPrefix(text, o.mark) {
			return Error{File: name, Msg: "file is " + o.name + " text", Hint: "save it as UTF-8"}, true
		}
	}
	for i, line := range lines {
		if offset, msg, hint := textFault(line); msg != "" {
			at := Pos{File: name, Line: i + 1, Column: 1 + utf8.RuneCountInString(line[:offset]), Source: line}
			return at.Errorf("%s", msg).WithHint("%s", hint), true
		}
	}
	return e, false
}

// textFault returns what is wrong with the bytes of a line, "" if nothing, and the offset of the first wrong one.
func textFault(line string) (offset int, msg, hint string) {
	for i, r := range line {
		switch {
		case r == utf8.RuneError:
			if _, n := utf8.DecodeRuneInString(line[i:]); n == 1 {
				return i, "file is not UTF-8 text", "save it as UTF-8"
			}
		case r == 0:
			return i, "file holds a zero byte", "it is binary, or UTF-16: save it as UTF-8 text"
		case r < ' ' && r != '\t', r == 0x7f, r == colonMark:
			return i, "file holds a control character", "take it out"
		}
	}
	return 0, "", ""
}
