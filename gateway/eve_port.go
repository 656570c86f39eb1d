package gateway

import (
	"context"
	"log/slog"
	"time"

	"github.com/softdpu/softdpu/dataplane"
)

// evePort is the port that an event is about.
type evePort struct {
	Name   string `json:"name"`
	Device string `json:"device"`
	Detail string `json:"detail,omitempty"` // for people
}

// port writes what has become of a port.
func (e *eventLog) port(event string, p *evePort, by string) {
	e.write(&eveEvent{
		Timestamp: time.Now().Format(eveTime), EventType: evePortType, Port: p,
		Softdpu: eveRule{Event: event, By: by},
	})
}

// namePorts says which names the numbers of ports in drops stand for.
func (e *eventLog) namePorts(ports []dataplane.Port) {
	var names []string
	for _, p := range ports {
		for len(names) < int(p.ID) {
			names = append(names, "")
		}
		names[p.ID-1] = p.Name
	}
	e.ports.Store(&names)
}

// portChanged tells people and events what has become of a port's device.
func (g *running) portChanged(e dataplane.PortEvent) {
	level := slog.LevelInfo
	switch e.What {
	case dataplane.PortLost, dataplane.PortRefused, dataplane.PortDown:
		level = slog.LevelWarn
	}
	args := []any{"event", string(e.What), "name", e.Port, "device", e.Device}
	if e.Detail != "" {
		args = append(args, "detail", e.Detail)
	}
	g.options.Log.Log(context.Background(), level, "port changed", args...)
	g.events.port(string(e.What), &evePort{e.Port, e.Device, e.Detail}, "")
}
