package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A column of a table. Numbers go to the right.
type column struct {
	name  string
	right bool
}

// A table is what reading verbs print for people: aligned columns under a line of names.
type table struct {
	columns []column
	rows    [][]string
}

// columnGap is the space between columns; minColumn is what a column keeps on a narrow terminal.
const (
	columnGap = 2
	minColumn = 8
)

// newTable starts a table. A name that begins with ">" is that of a column of numbers.
func newTable(names ...string) *table {
	t := &table{}
	for _, n := range names {
		name, right := strings.CutPrefix(n, ">")
		t.columns = append(t.columns, column{name, right})
	}
	return t
}

// add appends a row, one cell a column. What would move the cursor is shown as '?'.
func (t *table) add(cells ...any) {
	row := make([]string, len(t.columns))
	for i := range min(len(row), len(cells)) {
		row[i] = visible(fmt.Sprint(cells[i]))
	}
	t.rows = append(t.rows, row)
}

// visible shows as '?' what would move the cursor.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// write prints the table. With a width, in columns of a terminal, the widest cells are cut with an
// ellipsis until it fits; with 0 nothing is cut.
func (t *table) write(w io.Writer, width int) error {
	widths := t.widths(width)
	b := bufio.NewWriter(w)
	names := make([]string, len(t.columns))
	for i, c := range t.columns {
		names[i] = c.name
	}
	t.line(b, names, widths)
	for _, row := range t.rows {
		t.line(b, row, widths)
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("print table: %w", err)
	}
	return nil
}

func (t *table) line(b *bufio.Writer, cells []string, widths []int) {
	var line strings.Builder
	for i, cell := range cells {
		if i > 0 {
			line.WriteString(strings.Repeat(" ", columnGap))
		}
		cell = cut(cell, widths[i])
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
		if t.columns[i].right {
			line.WriteString(pad + cell)
		} else {
			line.WriteString(cell + pad)
		}
	}
	b.WriteString(strings.TrimRight(line.String(), " "))
	b.WriteByte('\n')
}

// widths gives each column its widest cell, then takes from the widest column until all fit.
func (t *table) widths(width int) []int {
	widths := make([]int, len(t.columns))
	total := columnGap * (len(t.columns) - 1)
	for i, c := range t.columns {
		widths[i] = utf8.RuneCountInString(c.name)
		for _, row := range t.rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		total += widths[i]
	}
	for width > 0 && total > width {
		widest := -1
		for i, w := range widths {
			if !t.columns[i].right && w > minColumn && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
		total--
	}
	return widths
}

func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:width-1]) + "…"
}
