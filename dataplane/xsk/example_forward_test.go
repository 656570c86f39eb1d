package xsk_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// This program is a cable: what comes in on eth0 goes out on eth1, and back. No byte is copied between
// the two, because both sockets have the same UMEM: only descriptors move.
func Example_forward() {
	if err := forward(context.Background(), "eth0", "eth1"); err != nil {
		log.Fatal(err)
	}
}

// forward runs until the context ends.
func forward(ctx context.Context, devices ...string) (err error) {
	umem, err := xsk.NewUMEM(xsk.UMEMOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, umem.Close()) }()
	pool, err := umem.NewPool(umem.Frames())
	if err != nil {
		return err
	}
	var sockets []*xsk.Socket
	var poller xsk.Poller
	for _, device := range devices {
		redirect, err := xsk.Attach(device, xsk.AttachOptions{})
		if err != nil {
			return err
		}
		defer redirect.Close()
		// Fewer frames in the rings than there are: what is on its way needs frames too.
		socket, err := xsk.Open(umem, pool, device, 0, xsk.SocketOptions{Rx: 512, Tx: 512, Fill: 1024, Completion: 512})
		if err != nil {
			return err
		}
		defer socket.Close()
		if err := redirect.Add(socket); err != nil {
			return err
		}
		sockets = append(sockets, socket)
		poller.Add(socket, xsk.Readable)
	}

	batch := make([]xsk.Desc, 64)
	for ctx.Err() == nil {
		for _, s := range sockets {
			s.Reclaim()
		}
		moved := 0
		for i, from := range sockets {
			to := sockets[(i+1)%len(sockets)]
			n := from.Receive(batch)
			sent := to.Transmit(batch[:n])
			pool.Free(batch[sent:n]) // what did not fit is lost, as on any full queue
			moved += n
		}
		for _, s := range sockets {
			s.Refill()
			if err := s.Kick(); err != nil {
				return err
			}
		}
		if moved == 0 {
			if _, err := poller.Wait(10 * time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}
