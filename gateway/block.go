package gateway

import (
	"github.com/softdpu/softdpu/dataplane"
)

// Block keeps the kernel from forwarding in the network namespace of the calling thread until a gateway
// has started there, whatever turns forwarding on meanwhile. Where one has been, it is refused unless
// forced. A configuration that cannot be read is no
// reason not to: then only bridges of its devices, which are not known, go on. The notes say what is less
// than that.
func Block(path string, force bool) (notes []string, err error) {
	var devices []string
	c, configErr := LoadConfig(path)
	if configErr != nil {
		notes = append(notes, "bridges are left alone, because the ports are not known: "+configErr.Error())
	} else {
		for _, p := range c.Ports {
			devices = append(devices, p.Device)
		}
	}
	without, err := dataplane.RaiseBarrier(devices, force)
	if without != nil {
		notes = append(notes, "forwarding is turned off instead, which others can turn on again: "+without.Error())
	}
	return notes, err
}

// unblock ends what Block began: XDP and guards stand. Without it what XDP hands to the kernel would be lost,
// and no more.
func (g *running) unblock() {
	found, err := dataplane.LowerBarrier()
	if err != nil {
		g.options.Log.Error("packets of allowed flows that need the kernel are dropped", "error", err)
	} else if found {
		g.options.Log.Info("the block before the start is taken away")
	}
}
