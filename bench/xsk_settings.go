package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// deviceSettings is what a device of the machine was set to before a bench, noted in a file, so that the
// next bench puts it back if this one is killed.
type deviceSettings struct {
	Device    string            `json:"device"`
	Index     uint32            `json:"index"`
	Namespace uint64            `json:"namespace"` // inode number of the network namespace
	Channels  *channels         `json:"channels,omitempty"`
	Rings     *rings            `json:"rings,omitempty"`
	NAPI      map[string]string `json:"napi"` // values by the files below /sys/class/net/DEVICE

	path string
	file *os.File // locked as long as the bench lives
}

// channels are a device's queues.
type channels struct {
	Rx       uint32 `json:"rx"`
	Tx       uint32 `json:"tx"`
	Combined uint32 `json:"combined"`
}

// rings are the sizes of a device's own rings, in descriptors.
type rings struct {
	Rx      uint32 `json:"rx"`
	RxMini  uint32 `json:"rx_mini"`
	RxJumbo uint32 `json:"rx_jumbo"`
	Tx      uint32 `json:"tx"`
}

// busyPollSettings make a device's NAPI leave the work to those who poll, for as long as they do: what the
// kernel's document on busy polling names (Documentation/networking/napi.rst).
var busyPollSettings = map[string]string{"napi_defer_hard_irqs": "2", "gro_flush_timeout": "200000"}

// takeDeviceSettings notes how a device is set. restore ends it.
func takeDeviceSettings(dir, device string) (*deviceSettings, error) {
	s, err := readDeviceSettings(device)
	if err != nil {
		return nil, err
	}
	if err := s.note(dir); err != nil {
		return nil, err
	}
	return s, nil
}

func readDeviceSettings(device string) (*deviceSettings, error) {
	index, err := deviceIndex(device)
	if err != nil {
		return nil, err
	}
	s := &deviceSettings{Device: device, Index: index, NAPI: map[string]string{}}
	if s.Namespace, err = networkNamespace(); err != nil {
		return nil, err
	}
	e, err := ethtool.NewEthtool()
	if err != nil {
		return nil, fmt.Errorf("open ethtool: %w", err)
	}
	defer e.Close()
	// Devices that have neither need neither back.
	if c, err := e.GetChannels(device); err == nil {
		s.Channels = &channels{c.RxCount, c.TxCount, c.CombinedCount}
	}
	if r, err := e.GetRing(device); err == nil {
		s.Rings = &rings{r.RxPending, r.RxMiniPending, r.RxJumboPending, r.TxPending}
	}
	for name := range busyPollSettings {
		if v, err := os.ReadFile(s.napiFile(name)); err == nil {
			s.NAPI[name] = strings.TrimSpace(string(v))
		}
	}
	return s, nil
}

func (s *deviceSettings) napiFile(name string) string {
	return filepath.Join("/sys/class/net", s.Device, name)
}

// networkNamespace returns the inode number of the calling thread's network namespace.
func networkNamespace() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0, fmt.Errorf("read network namespace: %w", err)
	}
	return st.Ino, nil
}

// settingsPattern is what the files are called.
const settingsPattern = "bench-xsk-*.json"

// note writes the file, which is locked before anybody sees it.
func (s *deviceSettings) note(dir string) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("note settings of %s: %w", s.Device, err)
	}
	s.path = filepath.Join(dir, fmt.Sprintf("bench-xsk-%s-%d.json", s.Device, s.Namespace))
	draft, err := os.CreateTemp(dir, ".bench-xsk-")
	if err != nil {
		return fmt.Errorf("note settings of %s: %w", s.Device, err)
	}
	defer func() {
		if err != nil {
			draft.Close()
			os.Remove(draft.Name())
			err = fmt.Errorf("note settings of %s: %w", s.Device, err)
		}
	}()
	if err := unix.Flock(int(draft.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	if err := json.NewEncoder(draft).Encode(s); err != nil {
		return err
	}
	if err := draft.Sync(); err != nil {
		return err
	}
	// A link, unlike a rename, takes nobody's place.
	if err := os.Link(draft.Name(), s.path); err != nil {
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("%s is there: another bench runs on the device", s.path)
		}
		return err
	}
	s.file = draft
	return os.Remove(draft.Name())
}

// setQueues makes the device have so many queues that receive and send.
func (s *deviceSettings) setQueues(n int) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer e.Close()
	c, err := e.GetChannels(s.Device)
	if errors.Is(err, unix.EOPNOTSUPP) && n == 1 {
		return nil // a device whose queue cannot be anything else
	}
	if err != nil {
		return fmt.Errorf("set %s to %d queues: %w: its driver has no channels to set", s.Device, n, err)
	}
	before := channels{c.RxCount, c.TxCount, c.CombinedCount}
	most := max(c.MaxCombined, min(c.MaxRx, c.MaxTx))
	if uint32(n) > most {
		return fmt.Errorf("set %s to %d queues: it has %d at most", s.Device, n, most)
	}
	if c.MaxCombined > 0 {
		c.CombinedCount, c.RxCount, c.TxCount = uint32(n), 0, 0
	} else {
		c.RxCount, c.TxCount = uint32(n), uint32(n)
	}
	if before == (channels{c.RxCount, c.TxCount, c.CombinedCount}) {
		return nil
	}
	if _, err := e.SetChannels(s.Device, c); err != nil {
		return fmt.Errorf("set %s to %d queues: %w", s.Device, n, err)
	}
	return nil
}

// setBusyPoll makes the device's interrupts wait for those who poll.
func (s *deviceSettings) setBusyPoll() error {
	for name, value := range busyPollSettings {
		if err := os.WriteFile(s.napiFile(name), []byte(value), 0); err != nil {
			return fmt.Errorf("set %s of %s: %w", name, s.Device, err)
		}
	}
	return nil
}

// restore puts back what is no longer as it was, and removes the file. The kernel may keep a device as it is
// for a moment after its sockets are closed: so long it tries.
func (s *deviceSettings) restore(patience time.Duration) error {
	err := s.putBack()
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); err = s.putBack() {
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w (%s says how it was)", s.Device, err, s.path)
	}
	return s.forget()
}

func (s *deviceSettings) forget() error {
	err := os.Remove(s.path)
	if s.file != nil {
		err = errors.Join(err, s.file.Close())
		s.file = nil
	}
	if err != nil {
		return fmt.Errorf("forget settings of %s: %w", s.Device, err)
	}
	return nil
}

func (s *deviceSettings) putBack() error {
	now, err := readDeviceSettings(s.Device)
	if err != nil {
		return err
	}
	e, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer e.Close()
	var errs []error
	if s.Channels != nil && now.Channels != nil && *s.Channels != *now.Channels {
		c, err := e.GetChannels(s.Device) // the others that there are stay as they are
		c.RxCount, c.TxCount, c.CombinedCount = s.Channels.Rx, s.Channels.Tx, s.Channels.Combined
		if err == nil {
			_, err = e.SetChannels(s.Device, c)
		}
		errs = append(errs, wrap("set channels", err))
	}
	if s.Rings != nil && now.Rings != nil && *s.Rings != *now.Rings {
		_, err := e.SetRing(s.Device, ethtool.Ring{RxPending: s.Rings.Rx, RxMiniPending: s.Rings.RxMini, RxJumboPending: s.Rings.RxJumbo, TxPending: s.Rings.Tx})
		errs = append(errs, wrap("set rings", err))
	}
	for name, value := range s.NAPI {
		if now.NAPI[name] != value {
			errs = append(errs, wrap("set "+name, os.WriteFile(s.napiFile(name), []byte(value), 0)))
		}
	}
	return errors.Join(errs...)
}

// wrap says what was done when err came; nil stays nil.
func wrap(what string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return err
}

// recoverDevices puts devices of this network namespace back as they were before a bench that was killed,
// and says so.
func recoverDevices(dir string, say func(string)) error {
	files, err := filepath.Glob(filepath.Join(dir, settingsPattern))
	if err != nil {
		return err
	}
	here, err := networkNamespace()
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range files {
		errs = append(errs, recoverDevice(path, here, say))
	}
	return errors.Join(errs...)
}

func recoverDevice(path string, here uint64, say func(string)) error {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // its bench has just ended
	}
	if err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil // its bench runs
	}
	s := &deviceSettings{path: path}
	if err := json.NewDecoder(f).Decode(s); err != nil {
		return fmt.Errorf("read settings: %s: %w: remove it if it is of no use", path, err)
	}
	if s.Namespace != here {
		return nil // a bench in that namespace will do it
	}
	if index, err := deviceIndex(s.Device); err != nil || index != s.Index {
		say(fmt.Sprintf("%s, which a killed bench had set, is gone", s.Device))
		return s.forget()
	}
	if err := errors.Join(detachXDPSock(s.Device), s.restore(time.Second)); err != nil {
		return err
	}
	say(fmt.Sprintf("restored %s, which a killed bench had left as it was set for it", s.Device))
	return nil
}

// detachXDPSock takes the program away that xdpsock leaves on a device if it does not end by itself.
func detachXDPSock(device string) error {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("find device %s: %w", device, err)
	}
	x := l.Attrs().Xdp
	if x == nil || !x.Attached {
		return nil
	}
	prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(x.ProgId))
	if err != nil {
		return fmt.Errorf("look at the program on %s: %w", device, err)
	}
	defer prog.Close()
	if info, err := prog.Info(); err != nil || info.Name != "xsk_def_prog" { // libxdp's
		return err
	}
	if err := netlink.LinkSetXdpFd(l, -1); err != nil {
		return fmt.Errorf("detach the peer's program from %s: %w", device, err)
	}
	return nil
}
