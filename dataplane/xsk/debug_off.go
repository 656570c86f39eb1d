//go:build !xskdebug

package xsk

// debug is true in a build with the tag xskdebug. As a constant it takes the checks out of other builds.
const debug = false
