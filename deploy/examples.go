// Package deploy holds what is installed beside the binary. Its examples stand in the binary too, so
// that the demo shows what the folder holds.
package deploy

import "embed"

// ClientServer is the example for the lab of that name, below examples/client-server: softdpu.yaml and
// policy.d.
//
//go:embed examples/client-server
var ClientServer embed.FS
