package pipe

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A unit is what stands behind a number, and how many bytes or packets it is.
type unit struct {
	name    string
	scale   float64
	packets bool
}

// Units of rates, largest first where several would do.
var rateUnits = []unit{
	{"Gbit", 1e9 / 8, false}, {"Mbit", 1e6 / 8, false}, {"kbit", 1e3 / 8, false}, {"bit", 1.0 / 8, false},
	{"Mpps", 1e6, true}, {"kpps", 1e3, true}, {"pps", 1, true},
	{"B/s", 1, false},
}

// Units of sizes. A bare number is bytes, or packets of a meter that counts these.
var sizeUnits = []unit{
	{"GB", 1e9, false}, {"MB", 1e6, false}, {"KB", 1e3, false}, {"MiB", 1 << 20, false}, {"KiB", 1 << 10, false}, {"B", 1, false}, {"", 1, false},
}

// ParseRate reads a rate as people write it, as in 10Mbit, 1000pps or 125000B/s, in bytes or packets a second. The error
// is a *ValueError.
func ParseRate(text string) (rate uint64, packets bool, err error) {
	for _, u := range rateUnits {
		if number, ok := strings.CutSuffix(text, u.name); ok {
			rate, err = u.times(number)
			return rate, u.packets, err
		}
	}
	return 0, false, &ValueError{fmt.Sprintf("%q is no rate", text), "as in 10Mbit, 1000pps or 125000B/s"}
}

// ParseSize reads a size as people write it, as in 64KB or 1MiB, in bytes; a bare number is one of bytes or packets. The
// error is a *ValueError.
func ParseSize(text string) (size uint64, bare bool, err error) {
	for _, u := range sizeUnits {
		if number, ok := strings.CutSuffix(text, u.name); ok {
			if size, err = u.times(number); err == nil {
				return size, u.name == "", nil
			}
		}
	}
	return 0, false, &ValueError{fmt.Sprintf("%q is no size", text), "as in 64KB, 1MiB or 65536"}
}

// times is a number of units, which comes to a whole number.
func (u *unit) times(number string) (uint64, error) {
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	v := n * u.scale
	if err != nil || math.IsNaN(v) || v < 0 || v >= 1<<53 || v != math.Trunc(v) || strings.ContainsAny(number, "_xXpP") {
		return 0, &ValueError{fmt.Sprintf("%q is no number of %s", number, u.name), "it comes to a whole number of bytes or packets"}
	}
	return uint64(v), nil
}

// RateText writes a rate so that [ParseRate] reads it again.
func RateText(rate uint64, packets bool) string {
	for _, u := range rateUnits {
		if u.packets != packets {
			continue
		}
		if n := float64(rate) / u.scale; rate == 0 || n >= 1 && n == math.Trunc(n) {
			if rate == 0 && u.scale != 1 {
				continue
			}
			return strconv.FormatFloat(n, 'f', -1, 64) + u.name
		}
	}
	return fmt.Sprintf("%dB/s", rate)
}

// SizeText writes a size so that [ParseSize] reads it again.
func SizeText(size uint64, packets bool) string {
	if packets || size == 0 {
		return fmt.Sprint(size)
	}
	for _, u := range sizeUnits {
		if scale := uint64(u.scale); size%scale == 0 && u.name != "B" {
			return fmt.Sprintf("%d%s", size/scale, u.name)
		}
	}
	return fmt.Sprint(size)
}
