package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/gateway"
)

// What can come first in a live view of workers.
var workerSorts = []string{"number", "rate"}

func newWorkersCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workers",
		Short: "Show the workers of the running gateway, their queues and rings",
		Long: `Show the threads that carry what XDP cannot deal with alone: why they run and in which mode, then what
each has done, then the sockets that they have on the queues of the ports.

BATCH is the mean of packets taken at once, SYSCALLS how many system calls a packet took. RX, TX, FILL and
COMPL are the rings, as descriptors used of how many there is room for. WAITING are packets that XDP has
handed over and that are not taken yet. --watch shows what comes on top each second.`,
		Example: `  sudo softdpu workers
  sudo softdpu workers --watch
  sudo softdpu workers -o json`,
		Args: takes(0),
	}
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	live := addWatchFlags(cmd, workerSorts...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := live.check(cmd, format); err != nil {
			return err
		}
		client := gateway.NewClient(*socket)
		if *live.on {
			w := &workerWatch{sort: *live.sort, read: client.Workers}
			return watch(cmd.Context(), env, w.next)
		}
		s, err := client.Workers(cmd.Context())
		if err != nil {
			return err
		}
		if format.json {
			return printJSON(env.Stdout, s)
		}
		return writeWorkers(env.Stdout, s, time.Now(), env.Width())
	}
	return cmd
}

// writeWorkers prints the state of workers for people.
func writeWorkers(out io.Writer, s *gateway.WorkersStatus, now time.Time, width int) error {
	text := &statusPrinter{width: cmp.Or(width, statusWidth)}
	if !s.Running {
		text.say("Workers", "none: %s", noWorkers(s.NeededBy))
		_, err := io.WriteString(out, text.b.String())
		return err
	}
	text.say("Workers", "%d in %s mode", len(s.Workers), s.Mode)
	for _, need := range s.NeededBy {
		text.say("", "for %s", need)
	}
	if len(s.NeededBy) == 0 {
		text.say("", "which nothing needs any more")
	}
	for _, line := range attemptTexts(s.Attempts) {
		text.say("", "%s", line)
	}
	m := &s.Memory
	text.say("Memory", "%d frames of %d bytes, %d of them free", m.Frames, m.FrameSize, m.Free)
	text.say("", "pages of %s%s", size(uint64(m.PageSize)), because(m.WhySmall))
	text.b.WriteByte('\n')

	each := newTable("WORKER", ">CPU", "STATE", ">PACKETS", ">BATCH", ">SYSCALLS", ">WAKEUPS", ">OVER", ">MIRRORED", ">MOVED UP", ">DROPPED", ">RESTARTS")
	queues := newTable("PORT", ">QUEUE", ">WORKER", "RX", "TX", "FILL", "COMPL", ">WAITING", ">RECEIVED", ">SENT", ">DROPPED")
	var b bytes.Buffer
	for i := range s.Workers {
		w := &s.Workers[i]
		each.add(w.ID, workerCPU(w), w.State, count(w.Packets), mean(w.Packets, batches(w)), mean(w.Syscalls, w.Packets), count(w.Wakeups),
			count(w.HandedOver), count(w.Mirrored), count(w.MovedUp), count(dropped(w)), w.Restarts)
		for k := range w.Queues {
			q := &w.Queues[k]
			queues.add(q.Port, q.Queue, w.ID, ringText(q.Rx), ringText(q.Tx), ringText(q.Fill), ringText(q.Completion),
				q.Waiting(), count(q.RxPackets), count(q.TxPackets), count(uint64(q.Lost)+q.TxNoRoom))
		}
	}
	if err := each.write(&b, width); err != nil {
		return err
	}
	b.WriteByte('\n')
	if err := queues.write(&b, width); err != nil {
		return err
	}
	text.b.Write(b.Bytes())
	notes := crewNotes(s, now)
	if len(notes) > 0 {
		text.b.WriteByte('\n')
	}
	for _, n := range notes {
		text.wrap("! ", "  ", n)
	}
	if _, err := io.WriteString(out, text.b.String()); err != nil {
		return fmt.Errorf("print workers: %w", err)
	}
	return nil
}

// noWorkers says why none run.
func noWorkers(needed []string) string {
	if len(needed) == 0 {
		return "nothing in configuration or policy needs them"
	}
	return "though needed for " + strings.Join(needed, ", ")
}

// attemptTexts tells the modes that were refused, ports that were told the same together, in the order in which they were tried.
func attemptTexts(attempts []worker.Attempt) (lines []string) {
	type refusal struct{ mode, why string }
	var order []refusal
	ports := make(map[refusal][]string)
	for _, a := range attempts {
		if a.Error == "" {
			continue
		}
		r := refusal{a.Mode, a.Error}
		if ports[r] == nil {
			order = append(order, r)
		}
		if !slices.Contains(ports[r], a.Port) {
			ports[r] = append(ports[r], a.Port)
		}
	}
	for _, r := range order {
		lines = append(lines, fmt.Sprintf("not %s: %s: %s", r.mode, strings.Join(ports[r], ", "), r.why))
	}
	return lines
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// crewNotes collects what is wrong with workers.
func crewNotes(s *gateway.WorkersStatus, now time.Time) (notes []string) {
	for i := range s.Workers {
		w := &s.Workers[i]
		if w.State != "polling" && w.State != "sleeping" {
			notes = append(notes, fmt.Sprintf("worker %d is %s: its flows are dropped (worker-full) or go on in XDP, as their rules say", w.ID, w.State))
		}
		for _, reason := range slices.Sorted(maps.Keys(w.Drops)) {
			if n := w.Drops[reason]; n > 0 {
				notes = append(notes, fmt.Sprintf("worker %d dropped %s: %s", w.ID, quantity(int(n), "packet"), reason))
			}
		}
		if w.MirrorLost > 0 {
			notes = append(notes, fmt.Sprintf("worker %d left out %s for monitor ports: there was no frame, no room or no port", w.ID, quantityOf(int(w.MirrorLost), "copy", "copies")))
		}
		for k := range w.Queues {
			if text := kernelText(&w.Queues[k]); text != "" {
				notes = append(notes, fmt.Sprintf("port %s queue %d: the kernel counts %s", w.Queues[k].Port, w.Queues[k].Queue, text))
			}
		}
	}
	return append(notes, stallTexts(s.Stalls, now)...)
}

// stallTexts tells of rings that stand still.
func stallTexts(stalls []worker.Stall, now time.Time) (notes []string) {
	for _, s := range stalls {
		notes = append(notes, fmt.Sprintf("port %s queue %d: the %s ring stands still for %s with %d in it: %s",
			s.Port, s.Queue, s.Ring, interval(max(0, now.Sub(s.Since).Seconds())), s.Waiting, s.Why))
	}
	return notes
}

// kernelText lists what XDP_STATISTICS counts that is not 0. That a tx ring was found empty is no fault.
func kernelText(q *worker.QueueStatus) string {
	var out []string
	for _, c := range []struct {
		n    uint64
		name string
	}{
		{q.RxDropped, "rx_dropped"}, {q.RxInvalid, "rx_invalid_descs"}, {q.TxInvalid, "tx_invalid_descs"},
		{q.RxRingFull, "rx_ring_full"}, {q.FillEmpty, "rx_fill_ring_empty_descs"},
	} {
		if c.n > 0 {
			out = append(out, count(c.n)+" "+c.name)
		}
	}
	return strings.Join(out, ", ")
}

func workerCPU(w *worker.WorkerStatus) string {
	if w.CPU < 0 {
		return "any"
	}
	return fmt.Sprint(w.CPU)
}

// batches is how often a worker took packets.
func batches(w *worker.WorkerStatus) (n uint64) {
	for _, b := range w.Batches {
		n += b
	}
	return n
}

func dropped(w *worker.WorkerStatus) (n uint64) {
	for _, d := range w.Drops {
		n += d
	}
	return n
}

// mean divides, for people.
func mean(sum, of uint64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(sum)/float64(of))
}

func ringText(r worker.RingStatus) string { return fmt.Sprintf("%d/%d", r.Used, r.Size) }

// A workerWatch remembers one look at workers for the next.
type workerWatch struct {
	sort   string
	read   func(context.Context) (*gateway.WorkersStatus, error)
	before map[int]worker.WorkerStatus
}

func (w *workerWatch) next(ctx context.Context, rows int, since time.Duration) (frame, error) {
	s, err := w.read(ctx)
	if err != nil {
		return frame{}, err
	}
	return w.frame(s, rows, since, time.Now()), nil
}

// frame compares the workers with those of the look before, which was that long ago.
func (w *workerWatch) frame(s *gateway.WorkersStatus, rows int, since time.Duration, now time.Time) frame {
	seen := make(map[int]worker.WorkerStatus, len(s.Workers))
	all := slices.Clone(s.Workers)
	pace := func(x *worker.WorkerStatus, of func(*worker.WorkerStatus) uint64) float64 {
		was := w.before[x.ID]
		return perSecond(of(x), of(&was), since)
	}
	packets := func(x *worker.WorkerStatus) uint64 { return x.Packets }
	var total float64
	for i := range all {
		seen[all[i].ID] = all[i]
		total += pace(&all[i], packets)
	}
	slices.SortStableFunc(all, func(a, b worker.WorkerStatus) int {
		if w.sort == "rate" {
			if order := cmp.Compare(pace(&b, packets), pace(&a, packets)); order != 0 {
				return order
			}
		}
		return cmp.Compare(a.ID, b.ID)
	})
	t := newTable("WORKER", ">CPU", "STATE", ">PACKETS/S", ">BITS/S", ">BATCH", ">SYSCALLS", ">WAKEUPS/S", ">OVER/S", ">DROPPED/S", ">WAITING")
	for i := range all[:min(rows, len(all))] {
		x := &all[i]
		waiting := 0
		for k := range x.Queues {
			waiting += x.Queues[k].Waiting()
		}
		if since == 0 {
			t.add(x.ID, workerCPU(x), x.State, "-", "-", "-", "-", "-", "-", "-", waiting)
			continue
		}
		was := w.before[x.ID]
		t.add(x.ID, workerCPU(x), x.State, rate(pace(x, packets)), rate(8*pace(x, func(y *worker.WorkerStatus) uint64 { return y.Bytes })),
			mean(onTop(x.Packets, was.Packets), onTop(batches(x), batches(&was))), mean(onTop(x.Syscalls, was.Syscalls), onTop(x.Packets, was.Packets)),
			rate(pace(x, func(y *worker.WorkerStatus) uint64 { return y.Wakeups })), rate(pace(x, func(y *worker.WorkerStatus) uint64 { return y.HandedOver })),
			rate(pace(x, dropped)), waiting)
	}
	w.before = seen
	f := frame{title: fmt.Sprintf("%s  %s in %s mode: %s packets/s, by %s", now.Format(time.TimeOnly), quantity(len(all), "worker"), s.Mode, rate(total), w.sort), table: t}
	if !s.Running {
		f.title = fmt.Sprintf("%s  no workers: %s", now.Format(time.TimeOnly), noWorkers(s.NeededBy))
	}
	switch stalls := stallTexts(s.Stalls, now); {
	case len(stalls) > 0:
		f.below = "! " + strings.Join(stalls, "\n! ")
	case len(all) > rows:
		f.below = fmt.Sprintf("... and %d more", len(all)-rows)
	}
	return f
}

// onTop is what a counter has counted since it was before; one that began anew, all of it.
func onTop(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}
