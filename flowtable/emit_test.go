package flowtable

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/softdpu/softdpu/bpf"
)

// aclAgree compares tree, oracle and kernel (nil: without) on one batch of keys.
func aclAgree(t *testing.T, entries []ACLEntry, a *ACL, k *kernelClassifier, keys []bpf.XDPClassifyKey) (matched, reported int) {
	t.Helper()
	var verdicts []uint32
	var audits [][kernelAudits]uint32
	if k != nil {
		verdicts, audits = k.classify(t, keys)
	}
	for i := range keys {
		var got []uint32
		want, wantAudits := aclNaive(entries, &keys[i], nil)
		verdict := a.Classify(&keys[i], func(rule uint32) { got = append(got, rule) })
		if verdict != want || !slices.Equal(got, wantAudits) {
			t.Fatalf("key %+v: tree says %#x after %v, oracle %#x after %v", keys[i], verdict, got, want, wantAudits)
		}
		if k != nil {
			noted := audits[i][1:][:audits[i][0]]
			if verdicts[i] != want || !slices.Equal(noted, wantAudits) {
				t.Fatalf("key %+v: kernel says %#x after %v, oracle %#x after %v", keys[i], verdicts[i], noted, want, wantAudits)
			}
		}
		if want != 0 {
			matched++
		}
		reported += len(wantAudits)
	}
	return matched, reported
}

// codeACL compiles entries to instructions, however many they are.
func codeACL(entries []ACLEntry) *ACL {
	a := newACL(nil)
	a.code(entries)
	return a
}

func TestACLAgainstOracle(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := aclSource{rand.New(rand.NewPCG(seed, 0))}
	matched, reported, total := 0, 0, 0
	for round := range 60 {
		entries := s.entries([]int{0, 1, 2, 5, 20, 60, 150}[round%7])
		a, err := CompileACL(entries)
		if err != nil {
			t.Fatal(err)
		}
		keys := make([]bpf.XDPClassifyKey, kernelBatch)
		for i := range keys {
			keys[i] = s.key(entries)
		}
		m, r := aclAgree(t, entries, a, nil, keys)
		matched, reported, total = matched+m, reported+r, total+len(keys)
	}
	t.Logf("%d keys, %d matched, %d reports", total, matched, reported)
	if matched < total/10 || matched > total*9/10 || reported < total/250 {
		t.Errorf("of %d keys %d matched and %d were reported: the random entries test too little", total, matched, reported)
	}
}

func TestInstructionsAgainstOracle(t *testing.T) {
	kernelNeedsRoot(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := aclSource{rand.New(rand.NewPCG(seed, 0))}
	matched, reported, total := 0, 0, 0
	for round := range 40 {
		entries := s.entries([]int{0, 1, 2, 5, 20, 60, 150}[round%7])
		a, err := CompileACL(entries)
		if err != nil {
			t.Fatal(err)
		}
		k := newKernelClassifier(t, a, true)
		for range 3 {
			keys := make([]bpf.XDPClassifyKey, kernelBatch)
			for i := range keys {
				keys[i] = s.key(entries)
			}
			m, r := aclAgree(t, entries, a, k, keys)
			matched, reported, total = matched+m, reported+r, total+len(keys)
		}
		k.prog.Close()
	}
	t.Logf("%d keys, %d matched, %d reports", total, matched, reported)
	if matched < total/10 || matched > total*9/10 || reported < total/250 {
		t.Errorf("of %d keys %d matched and %d were reported: the random entries test too little", total, matched, reported)
	}
}
