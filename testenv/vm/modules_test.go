package main

import (
	"slices"
	"strings"
	"testing"
)

const (
	dep = `kernel/net/core/failover.ko:
kernel/drivers/net/net_failover.ko: kernel/net/core/failover.ko
kernel/drivers/net/virtio_net.ko.xz: kernel/drivers/net/net_failover.ko kernel/net/core/failover.ko
kernel/crypto/crc32c-intel.ko.zst:
kernel/net/802/stp.ko: kernel/net/llc/llc.ko
kernel/net/llc/llc.ko:
kernel/net/bridge/bridge.ko: kernel/net/802/stp.ko kernel/net/llc/llc.ko
`
	builtin = "kernel/drivers/virtio/virtio_pci.ko\nkernel/net/packet/af_packet.ko\n"
)

func TestModuleFiles(t *testing.T) {
	tests := []struct {
		name, wanted, files, err string
	}{
		{"what it needs comes first", "virtio_net", "failover net_failover virtio_net", ""},
		{"once each", "bridge stp virtio_net net_failover", "llc stp bridge failover net_failover virtio_net", ""},
		{"by the kernel's name", "crc32c_intel", "crc32c-intel", ""},
		{"by the file's name", "crc32c-intel", "crc32c-intel", ""},
		{"within the kernel", "virtio_pci stp", "llc stp", ""},
		{"may be missing", "zram? llc?", "llc", ""},
		{"is missing", "llc zram", "", "find module zram: this kernel has none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			files, err := moduleFiles(dep, builtin, strings.Fields(tt.wanted))
			if (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
				t.Fatal(err)
			}
			var names []string
			for _, f := range files {
				name, _, _ := strings.Cut(f[strings.LastIndexByte(f, '/')+1:], ".ko")
				names = append(names, name)
			}
			if want := strings.Fields(tt.files); !slices.Equal(names, want) {
				t.Errorf("%v, want %v", names, want)
			}
		})
	}
}
