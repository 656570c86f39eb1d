package xsk_test

import (
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/softdpu/softdpu/dataplane/xsk"
)

// This program counts the packets that arrive on the first queue of eth0. The kernel does not see them.
func Example_receive() {
	packets, err := countArrivals("eth0", 1000)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(packets, "packets have come")
}

// countArrivals returns after that many packets.
func countArrivals(device string, want int) (packets int, err error) {
	// First the program: where there is no socket yet, it passes packets to the kernel.
	redirect, err := xsk.Attach(device, xsk.AttachOptions{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, redirect.Close()) }()

	// Frames, and a pool with all of them for the one worker there is.
	umem, err := xsk.NewUMEM(xsk.UMEMOptions{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, umem.Close()) }()
	pool, err := umem.NewPool(umem.Frames())
	if err != nil {
		return 0, err
	}

	// A socket, which fills its ring with frames, and from now on has the queue.
	socket, err := xsk.Open(umem, pool, device, 0, xsk.SocketOptions{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, socket.Close()) }()
	if err := redirect.Add(socket); err != nil {
		return 0, err
	}

	var poller xsk.Poller
	poller.Add(socket, xsk.Readable)
	batch := make([]xsk.Desc, 64)
	for packets < want {
		n := socket.Receive(batch)
		for _, d := range batch[:n] {
			_ = umem.Frame(d) // the packet, from its Ethernet header on
			packets++
		}
		pool.Free(batch[:n])
		socket.Refill()
		if err := socket.Kick(); err != nil {
			return packets, err
		}
		if n == 0 {
			if _, err := poller.Wait(100 * time.Millisecond); err != nil {
				return packets, err
			}
		}
	}
	return packets, nil
}
