package main

import (
	"fmt"
	"strings"

	"github.com/softdpu/softdpu/testenv"
)

// wireLength is the length of a drawn cable, in columns.
const wireLength = 9

// picture draws the lab: each link with its far end on the left, the gateway as one tall box on the
// right. A topology without gateway has one link.
func picture(l *testenv.Lab) string {
	right := testenv.Gateway
	if _, ok := l.Topology.Node(right); !ok {
		right = l.Topology.Links[0].B.Node
	}
	var left, middle, lines []string
	for i, link := range l.Topology.Links {
		far, near := link.A, link.B
		if far.Node == right {
			far, near = near, far
		}
		if i > 0 {
			left, middle, lines = append(left, ""), append(middle, ""), append(lines, "")
		}
		farLines, nearLines := deviceLines(l, far), deviceLines(l, near)
		for len(nearLines) < len(farLines) {
			nearLines = append(nearLines, "")
		}
		left = append(left, box(l.Prefix+"-"+far.Node, farLines)...)
		wire := make([]string, len(farLines)+2)
		wire[1] = strings.Repeat("=", wireLength)
		middle = append(middle, wire...)
		if i > 0 {
			lines = append(lines, "") // beside the upper edge of the next far end
		}
		lines = append(lines, nearLines...)
		if i < len(l.Topology.Links)-1 {
			lines = append(lines, "")
		}
	}
	gateway := box(l.Prefix+"-"+right, lines)
	width := 0
	for _, s := range left {
		width = max(width, len(s))
	}
	var b strings.Builder
	for i := range left {
		fmt.Fprintln(&b, strings.TrimRight(fmt.Sprintf("%-*s%-*s%s", width, left[i], wireLength, middle[i], gateway[i]), " "))
	}
	return b.String()
}

func deviceLines(l *testenv.Lab, e testenv.End) []string {
	lines := []string{e.Device}
	node, _ := l.Topology.Node(e.Node)
	for _, d := range node.Devices {
		if d.Name != e.Device {
			continue
		}
		for _, a := range d.Addresses {
			lines = append(lines, "  "+a.String())
		}
		if len(d.Addresses) == 0 {
			lines = append(lines, "  no address")
		}
	}
	return lines
}

// box frames the lines under a title.
func box(title string, lines []string) []string {
	width := len(title) + 3
	for _, s := range lines {
		width = max(width, len(s))
	}
	framed := []string{"+- " + title + " " + strings.Repeat("-", width-len(title)-1) + "+"}
	for _, s := range lines {
		framed = append(framed, fmt.Sprintf("| %-*s |", width, s))
	}
	return append(framed, "+"+strings.Repeat("-", width+2)+"+")
}
