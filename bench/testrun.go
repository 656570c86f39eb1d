package bench

import (
	"errors"
	"fmt"
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

// sendFor runs prog on live frames, for d since the first of them: what it redirects really leaves.
// Starting and ending a test run takes RCU grace periods, in which nothing is sent; so it is one test
// run, sending tells when it has begun, and a signal to this thread, to which the caller has locked
// the goroutine, ends it. Linux 5.18.
func sendFor(prog *ebpf.Program, frame []byte, ifindex uint32, sending func() bool, d time.Duration) error {
	const most = 20e6 // frames a second, so that it ends without a signal too
	pid, thread, done := unix.Getpid(), unix.Gettid(), make(chan struct{})
	var stopper sync.WaitGroup
	stopper.Go(func() {
		wait := time.Millisecond
		for begun := false; ; {
			select {
			case <-done:
				return
			case <-time.After(wait):
			}
			switch {
			case begun:
				wait = time.Millisecond
				unix.Tgkill(pid, thread, unix.SIGURG) // which Go's runtime takes and ignores
			case sending():
				begun, wait = true, d
			}
		}
	})
	a := testRunAttr{repeat: uint32(most * d.Seconds()), flags: liveFrames, batchSize: 64}
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
