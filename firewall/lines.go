package firewall

import (
	"bytes"
	"strings"
)

// byteOrderMark may stand before a text and is none of it.
const byteOrderMark = "\ufeff"

// Lines end as in YAML 1.2 (section 5.4): by LF, CR or both.

// splitLines returns the lines of a text without their ends, where each begins and, last, where the text ends. Behind
// the last end there is no line.
func splitLines(text []byte) (lines []string, starts []int) {
	all := string(text)
	n := strings.Count(all, "\n") + 1
	lines, starts = make([]string, 0, n), make([]int, 0, n+1)
	for start := 0; start < len(text); {
		next := nextLine(text, start)
		lines, starts = append(lines, strings.TrimRight(all[start:next], "\r\n")), append(starts, start)
		start = next
	}
	return lines, append(starts, len(text))
}

// lineAt returns the line that begins at an offset, without its end.
func lineAt(text []byte, start int) string {
	return strings.TrimRight(string(text[start:nextLine(text, start)]), "\r\n")
}

// nextLine returns where the line behind the one at start begins.
func nextLine(text []byte, start int) int {
	end := len(text)
	if i := bytes.IndexByte(text[start:], '\n'); i >= 0 {
		end = start + i + 1
	}
	if i := bytes.IndexByte(text[start:end], '\r'); i >= 0 && (start+i+2 != end || text[end-1] != '\n') {
		return start + i + 1
	}
	return end
}

// lineBefore returns where the line before the one at start begins.
func lineBefore(text []byte, start int) int {
	end := max(start-1, 0)
	if end > 0 && text[end] == '\n' && text[end-1] == '\r' {
		end--
	}
	if i := bytes.LastIndexAny(text[:end], "\r\n"); i >= 0 {
		return i + 1
	}
	return textStart(text)
}

// textStart returns where the first line begins.
func textStart(text []byte) int {
	return len(text) - len(bytes.TrimPrefix(text, []byte(byteOrderMark)))
}

func endsLine(text []byte) bool {
	return len(text) > 0 && (text[len(text)-1] == '\n' || text[len(text)-1] == '\r')
}
