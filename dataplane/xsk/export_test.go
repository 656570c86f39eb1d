package xsk

// Debug tells tests of a debug build.
const Debug = debug

// KernelAtLeast tells tests what the running kernel is.
var KernelAtLeast = kernelAtLeast
