//go:build xskdebug

package xsk

// debug is true in a build with the tag xskdebug: every move of a frame is checked.
const debug = true
