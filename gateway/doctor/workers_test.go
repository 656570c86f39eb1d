package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/dataplane/worker"
	"github.com/softdpu/softdpu/gateway"
)

func TestDoctorWorkersWanted(t *testing.T) {
	for _, row := range []struct {
		name string
		w    gateway.Workers
		huge int64
		want []string
	}{
		{"nothing asked", gateway.Workers{}, 0, nil},
		{"all there", gateway.Workers{Count: 2, CPUs: []int{0, 1}, HugePages: true}, 8, nil},
		{"a CPU that is not", gateway.Workers{CPUs: []int{1, 7}}, 0, []string{"error workers.cpus names CPU 7"}},
		{"more than CPUs", gateway.Workers{Count: 3}, 0, []string{"warning 3 workers share 2 CPUs"}},
		{"all of the machine", gateway.Workers{Count: 2, Poll: gateway.WorkerPollAlways}, 0, []string{"warning workers that never sleep"}},
		{"no huge pages", gateway.Workers{HugePages: true}, 0, []string{"warning workers.huge_pages is set"}},
	} {
		e := &examination{}
		e.workersWanted(&row.w, []int{0, 1}, row.huge)
		finds(t, row.name, e, row.want)
	}
}

// finds compares the findings with what they begin with.
func finds(t *testing.T, name string, e *examination, want []string) {
	t.Helper()
	if len(e.findings) != len(want) {
		t.Errorf("%s: %+v, want %v", name, e.findings, want)
		return
	}
	for i, f := range e.findings {
		if f.Check != "workers" || !strings.HasPrefix(string(f.Severity)+" "+f.Found, want[i]) || f.Severity != Info && f.Remedy == "" {
			t.Errorf("%s: %+v, want %s", name, f, want[i])
		}
	}
}

func TestDoctorLooksAtWorkers(t *testing.T) {
	now := time.Now()
	queue := func(port string, n int) worker.QueueStatus { return worker.QueueStatus{Port: port, Queue: n} }
	for _, row := range []struct {
		name string
		s    gateway.WorkersStatus
		want []string
	}{
		{"none", gateway.WorkersStatus{}, nil},
		{"well", gateway.WorkersStatus{Running: true, Mode: "zero-copy", Workers: []worker.WorkerStatus{
			{State: "sleeping", Queues: []worker.QueueStatus{queue("lan0", 0), queue("wan0", 0)}}}}, nil},
		{"copies", gateway.WorkersStatus{Running: true, Mode: "copy", Attempts: []worker.Attempt{{Port: "lan0", Mode: "zero-copy", Error: "not supported"}, {Port: "lan0", Mode: "copy"}}},
			[]string{"info workers get copies of their packets: zero-copy on port lan0: not supported"}},
		{"generic", gateway.WorkersStatus{Running: true, Mode: "generic"}, []string{"warning workers get their packets in generic mode"}},
		{"small pages", gateway.WorkersStatus{Running: true, Memory: worker.MemoryStatus{WhySmall: "none is free"}}, []string{"warning the workers' memory is in small pages: none is free"}},
		{"silent", gateway.WorkersStatus{Running: true, Workers: []worker.WorkerStatus{{ID: 3, CPU: 1, State: "silent"}}}, []string{"error worker 3 on CPU 1 is silent"}},
		{"few CPUs", gateway.WorkersStatus{Running: true, Workers: []worker.WorkerStatus{{State: "polling", Queues: []worker.QueueStatus{queue("lan0", 0), queue("lan0", 1)}}}},
			[]string{"warning worker 0 serves 2 of its receive queues alone"}},
		{"stalled", gateway.WorkersStatus{Running: true, Stalls: []worker.Stall{{Port: "lan0", Queue: 1, Ring: "tx", Waiting: 9, Since: now, Why: "no carrier"}}},
			[]string{"error the tx ring of queue 1 stands still since"}},
	} {
		e := &examination{}
		e.crew(&row.s)
		finds(t, row.name, e, row.want)
	}
}

func TestReadCPUs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "online")
	if err := os.WriteFile(file, []byte("0-2,5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := readCPUs(file); !slices.Equal(got, []int{0, 1, 2, 5}) {
		t.Errorf("CPUs %v", got)
	}
	if len(readCPUs(onlineCPUs)) == 0 || readCPUs(file+"x") != nil {
		t.Error("this machine has no CPUs, or an absent file some")
	}
}
