package xsk

// Debug tells tests of a debug build.
const Debug = debug
