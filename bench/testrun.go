package bench

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// xdpMD is the kernel's struct xdp_md, the context of a test run.
type xdpMD struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

// testRunAttr is the kernel's union bpf_attr as BPF_PROG_TEST_RUN reads it.
type testRunAttr struct {
	progFD, retval           uint32
	dataSizeIn, dataSizeOut  uint32
	dataIn, dataOut          uint64
	repeat, duration         uint32
	ctxSizeIn, ctxSizeOut    uint32
	ctxIn, ctxOut            uint64
	flags, cpu, batchSize, _ uint32
}

const liveFrames = 1 << 1 // BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18

// testRun runs prog on frame, arriving by a device of the current network namespace that carries an
// XDP program, and returns the last verdict and the kernel's mean time of a round.
//
// ebpf.Program.Run reports no time and Benchmark takes no context, hence the system call.
func testRun(prog *ebpf.Program, frame []byte, ifindex uint32, repeat int) (verdict uint32, each time.Duration, err error) {
	a := testRunAttr{repeat: uint32(repeat)}
	if err := a.run(prog, frame, ifindex); err != nil {
		return 0, 0, err
	}
	return a.retval, time.Duration(a.duration), nil
}

// sendFor runs prog on live frames in batches of 64, for d since the first of them: what it redirects
// really leaves. sending tells when it has begun. Linux 5.18.
func sendFor(prog *ebpf.Program, frame []byte, ifindex uint32, sending func() bool, d time.Duration) error {
	begun := false
	return sendUntil(prog, frame, ifindex, 64, 20e6*d.Seconds(), func() time.Duration {
		switch {
		case begun:
			return 0
		case sending():
			begun = true
			return d
		}
		return time.Millisecond
	})
}

// sendUntil runs prog on live frames in batches. Starting and ending a test run takes RCU grace periods,
// in which nothing is sent; so it is one test run, which a signal to this thread, to which the caller has
// locked the goroutine, ends when left returns 0; else left says after how long to ask again. Without a
// signal it ends after `most` runs of prog.
func sendUntil(prog *ebpf.Program, frame []byte, ifindex uint32, batch uint32, most float64, left func() time.Duration) error {
	pid, thread, done := unix.Getpid(), unix.Gettid(), make(chan struct{})
	var stopper sync.WaitGroup
	stopper.Go(func() {
		for wait := time.Millisecond; ; {
			select {
			case <-done:
				return
			case <-time.After(wait):
			}
			if wait = left(); wait == 0 {
				wait = time.Millisecond
				unix.Tgkill(pid, thread, unix.SIGURG) // which Go's runtime takes and ignores
			}
		}
	})
	a := testRunAttr{repeat: uint32(min(most, math.MaxUint32)), flags: liveFrames, batchSize: batch}
	err := a.try(prog, frame, ifindex)
	close(done)
	stopper.Wait()
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

// run repeats a test run that a signal ended, the runtime's own included.
func (a *testRunAttr) run(prog *ebpf.Program, frame []byte, ifindex uint32) error {
	for {
		err := a.try(prog, frame, ifindex)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
}

func (a *testRunAttr) try(prog *ebpf.Program, frame []byte, ifindex uint32) error {
	ctx := xdpMD{DataEnd: uint32(len(frame)), IngressIfindex: ifindex}
	a.progFD = uint32(prog.FD())
	a.dataIn, a.dataSizeIn = uint64(uintptr(unsafe.Pointer(&frame[0]))), uint32(len(frame))
	a.ctxIn, a.ctxSizeIn = uint64(uintptr(unsafe.Pointer(&ctx))), uint32(unsafe.Sizeof(ctx))
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(a)), unsafe.Sizeof(*a))
	runtime.KeepAlive(frame)
	runtime.KeepAlive(&ctx)
	runtime.KeepAlive(prog)
	if errno != 0 {
		return fmt.Errorf("test run of %s: %w", prog, errno)
	}
	return nil
}
