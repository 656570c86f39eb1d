package main

import (
	"slices"
	"testing"
)

func TestLibraries(t *testing.T) {
	const ldd = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibbpf.so.1 => /lib/x86_64-linux-gnu/libbpf.so.1 (0x00007f)\n" +
		"\tlibmissing.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n"
	if got := libraries(ldd); !slices.Equal(got, []string{"/lib/x86_64-linux-gnu/libbpf.so.1", "/lib64/ld-linux-x86-64.so.2"}) {
		t.Errorf("got %v", got)
	}
	if got := libraries("\tstatically linked\n"); len(got) > 0 {
		t.Errorf("got %v", got)
	}
}
