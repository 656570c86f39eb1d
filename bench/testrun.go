package bench

import (
	"fmt"
	"runtime"
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

// sendFrames runs prog on live frames: what it redirects really leaves. Linux 5.18.
func sendFrames(prog *ebpf.Program, frame []byte, ifindex uint32, repeat int) error {
	a := testRunAttr{repeat: uint32(repeat), flags: liveFrames, batchSize: 64}
	return a.run(prog, frame, ifindex)
}

func (a *testRunAttr) run(prog *ebpf.Program, frame []byte, ifindex uint32) error {
	ctx := xdpMD{DataEnd: uint32(len(frame)), IngressIfindex: ifindex}
	a.progFD = uint32(prog.FD())
	a.dataIn, a.dataSizeIn = uint64(uintptr(unsafe.Pointer(&frame[0]))), uint32(len(frame))
	a.ctxIn, a.ctxSizeIn = uint64(uintptr(unsafe.Pointer(&ctx))), uint32(unsafe.Sizeof(ctx))
	for {
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(a)), unsafe.Sizeof(*a))
		runtime.KeepAlive(frame)
		runtime.KeepAlive(&ctx)
		runtime.KeepAlive(prog)
		switch errno {
		case 0:
			return nil
		case unix.EINTR, unix.EAGAIN: // a signal; the runtime's own included
		default:
			return fmt.Errorf("test run of %s: %w", prog, errno)
		}
	}
}
