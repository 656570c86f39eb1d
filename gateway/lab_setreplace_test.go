package gateway

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/testenv"
)

// replacedList is a list of n prefixes, in no order, in which the lab's addresses are not.
func replacedList(n int, six bool, random *rand.Rand) string {
	var b strings.Builder
	for range n {
		if six {
			fmt.Fprintf(&b, "2001:db8:%x:%x::/64\n", random.IntN(1<<16), random.IntN(1<<16))
			continue
		}
		fmt.Fprintf(&b, "%d.%d.%d.%d/%d\n", 16+random.IntN(150), random.IntN(256), random.IntN(256), random.IntN(32)<<3, 29)
	}
	return b.String()
}

// A list takes the place of all that a set holds, in one step under live connections: those that it names are cut,
// no other loses anything. It stays through a reload, kill -9 and a new start, until it is forgotten.
func TestLabSetReplace(t *testing.T) {
	t.Parallel()
	binary := buildSoftdpu(t, "")
	l := testenv.New(t, "client-server", testenv.Options{Prefix: "t-lab-setlist"})
	client, server, gw := l.Must(t, "client"), l.Must(t, "server"), l.Must(t, testenv.Gateway)
	c := writeSets(t, strings.Replace(labRouted, "on_stop: open", "on_stop: keep", 1))
	p := startProcess(t, gw, binary, c)
	p.ready(t)
	random := rand.New(rand.NewPCG(11, 11))
	echo := must(server.ServeEcho(t.Context(), netip.AddrPortFrom(server4, 5001)))
	t.Cleanup(func() { echo.Close() })
	var conns []net.Conn
	for range sized(50, 1000) {
		conn := must(client.Dial(limited(t, 10*time.Second), "tcp", echo.Addr().String()))
		t.Cleanup(func() { conn.Close() })
		conns = append(conns, conn)
	}
	works := func() {
		t.Helper()
		for _, conn := range conns {
			if err := swap(conn, random, 20*time.Second); err != nil {
				t.Fatal(err)
			}
		}
	}
	works()
	dir := t.TempDir()
	replace := func(text string) string {
		t.Helper()
		file := filepath.Join(dir, "list.txt")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		out, err := exec.Command(binary, "set", "replace", "listed", file, "--comment", "CHG-7", "--socket", c.Control.Socket).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Logf("%s: %s", time.Since(began), out)
		if took, most := time.Since(began), sized(10*time.Second, 3*time.Second); took > most {
			t.Errorf("replacing %d lines took %s, want %s at most", strings.Count(text, "\n"), took, most)
		}
		return string(out)
	}
	must(p.AddToSet(t.Context(), "listed", entries("203.0.113.77")))
	size := sized(20_000, 1_000_000)
	for _, six := range []bool{false, true} {
		done := make(chan error, 1)
		go func() { // what goes through meanwhile
			for i := 0; i < 20; i++ {
				if err := swap(conns[0], rand.New(rand.NewPCG(1, uint64(i))), 20*time.Second); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		replace(replacedList(size, six, random))
		if err := <-done; err != nil {
			t.Errorf("a connection meanwhile: %v", err)
		}
	}
	works()
	if drops := must(p.Drops(t.Context(), false)); len(drops) > 0 {
		t.Errorf("packets were dropped: %+v", drops)
	}
	if out := replace("10.10.2.0/25 # the server\n198.51.100.7\n"); !strings.Contains(out, "listed: 2 added, ") || !strings.Contains(out, "; 2 entries in force") {
		t.Errorf("says %s", out)
	}
	cutOff(t, conns[0], random)

	still := func() {
		t.Helper()
		list := must(p.SetEntries(t.Context(), "listed"))
		if len(list) != 2 || list[0].Entry != "10.10.2.0/25" || list[0].Source != setList || list[0].By != "root" || list[0].Comment != "CHG-7" || list[0].Line != 1 {
			t.Errorf("the entries are %+v", list)
		}
		for _, s := range must(p.Sets(t.Context())) {
			if s.Name == "listed" && (s.Entries != 2 || s.Added != 0 || s.ReplacedAt == nil || s.ReplacedBy != "root") {
				t.Errorf("the set is %+v", s)
			}
		}
		if lists, _ := filepath.Glob(filepath.Join(stateDir(c, "sets"), "*.list")); len(lists) != 1 {
			t.Errorf("there are lists %v", lists)
		}
	}
	still()
	if _, err := p.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	cutOff(t, conns[1], random)
	p.kill()
	p = startProcess(t, gw, binary, c)
	p.ready(t)
	cutOff(t, conns[2], random)
	still()

	// Over a list lies what is given one by one.
	must(p.DeleteFromSet(t.Context(), "listed", entries("10.10.2.0/25")))
	comesBack(t, conns[0])
	must(p.AddToSet(t.Context(), "listed", entries("10.10.2.0/25")))
	_, err := p.ReplaceSet(t.Context(), "listed", "", strings.NewReader("192.0.2.1\n10.1.2.3/8\n"))
	var errs firewall.Errors
	if !errors.As(err, &errs) || len(errs) != 1 || errs[0].Line != 2 || errs[0].Hint == "" {
		t.Errorf("a wrong list: %v", err)
	}
	if _, err := p.ReplaceSet(t.Context(), "lsted", "", strings.NewReader("192.0.2.1\n")); err == nil || !strings.Contains(err.Error(), `did you mean "listed"`) {
		t.Errorf("a set that there is not: %v", err)
	}
	if _, err := p.ReplaceSet(t.Context(), "listed", "two\nlines", strings.NewReader("")); err == nil {
		t.Error("a comment of two lines is taken")
	}
	still()
	done := must(p.DeleteFromSet(t.Context(), "listed", SetChange{All: true}))
	if done.Removed != 1 || done.Added != 1 || done.Entries != 2 {
		t.Errorf("forgetting the list: %+v", done)
	}
	comesBack(t, conns[1])
	if lists, _ := filepath.Glob(filepath.Join(stateDir(c, "sets"), "*.list")); len(lists) != 0 {
		t.Errorf("there still are lists %v", lists)
	}
	p.stop(t)
}
