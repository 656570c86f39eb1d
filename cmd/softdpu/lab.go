package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/testenv"
)

func newLabCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Make and use network namespaces to try softdpu in",
		Long: `A lab is a set of network namespaces joined by veth pairs: hosts, and a gateway between them whose
kernel does not forward. It touches nothing outside of these namespaces. It needs root.

Topologies:
` + topologyList(),
		Example: `  sudo softdpu lab up client-server
  sudo softdpu lab exec client -- ping -c 3 10.10.1.1
  sudo softdpu lab down`,
	}
	prefix := cmd.PersistentFlags().String("prefix", testenv.DefaultPrefix, "beginning of the namespaces' names; another lab can be up under another prefix")
	cmd.AddCommand(
		newLabUpCommand(env, prefix),
		newLabDownCommand(env, prefix),
		newLabExecCommand(env, prefix),
		newLabListCommand(env),
	)
	return group(cmd)
}

func topologyNames() []string {
	var names []string
	for _, t := range testenv.Topologies() {
		names = append(names, t.Name)
	}
	return names
}

func topologyList() string {
	var b strings.Builder
	for _, t := range testenv.Topologies() {
		fmt.Fprintf(&b, "  %-14s %s\n", t.Name, t.About)
	}
	return strings.TrimRight(b.String(), "\n")
}

func newLabUpCommand(env *Env, prefix *string) *cobra.Command {
	var o testenv.Options
	cmd := &cobra.Command{
		Use:   "up TOPOLOGY",
		Short: "Build a lab",
		Long: `Build a lab, show it and say what to try in it. A lab that is up under the same prefix, or what a
crash left of one, is removed first together with the processes in it.

Topologies:
` + topologyList(),
		Example: `  sudo softdpu lab up client-server
  sudo softdpu lab up inline --mtu 9000
  sudo softdpu lab up three-zone --prefix mine`,
		Args:              takes(0, "a TOPOLOGY: "+strings.Join(topologyNames(), ", ")),
		ValidArgsFunction: complete(topologyNames),
	}
	cmd.Flags().IntVar(&o.MTU, "mtu", 1500, "MTU of all devices, in bytes")
	cmd.Flags().IntVar(&o.Queues, "queues", 1, "receive and transmit queues of each device")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := testenv.TopologyByName(args[0]); err != nil {
			return usagef(cmd, "%w%s", err, suggestion(args[0], topologyNames()))
		}
		o.Prefix = *prefix
		l, err := testenv.Up(args[0], o)
		if err != nil {
			return err
		}
		fmt.Fprintf(env.Stdout, "%s\n%s", picture(l), whatToTry(env, l))
		return nil
	}
	return cmd
}

// whatToTry returns command lines that work in the lab as it stands.
func whatToTry(env *Env, l *testenv.Lab) string {
	lab := env.Program + " lab "
	if env.Getenv("SUDO_USER") != "" {
		lab = "sudo " + lab
	}
	list := lab + "list"
	if l.Prefix != testenv.DefaultPrefix {
		lab += "--prefix " + l.Prefix + " "
	}
	first, last := l.Topology.Links[0].A, l.Topology.Links[len(l.Topology.Links)-1].B
	farNode, _ := l.Topology.Node(last.Node)
	far := farNode.Devices[0].IPv4().String()
	intro := "Try:"
	var lines [][2]string // command line, what comes of it
	if _, gateway := l.Topology.Node(testenv.Gateway); gateway {
		intro = "The gateway's kernel does not forward: nothing passes until softdpu runs in it. Try:"
		config := "softdpu.yaml"
		example := filepath.Join("deploy/examples", l.Topology.Name, config)
		if _, err := os.Stat(example); err == nil { // in a checkout
			config = example
		}
		lines = append(lines,
			[2]string{lab + "exec " + first.Node + " -- ping -c 3 -W 1 " + far, "no answer yet"},
			[2]string{lab + "exec gw -- " + env.Program + " run -c " + config, "now passes what the policy allows"})
	} else {
		lines = append(lines, [2]string{lab + "exec " + first.Node + " -- ping -c 3 " + far, "the other end answers"})
	}
	lines = append(lines,
		[2]string{lab + "exec " + last.Node + " -- bash", "a shell in that namespace"},
		[2]string{list, "what is up"},
		[2]string{lab + "down", "remove it all"})
	width := 0
	for _, line := range lines {
		width = max(width, len(line[0]))
	}
	var b strings.Builder
	fmt.Fprintln(&b, intro)
	for _, line := range lines {
		fmt.Fprintf(&b, "  %-*s  # %s\n", width, line[0], line[1])
	}
	return b.String()
}

func newLabDownCommand(env *Env, prefix *string) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the lab",
		Long: `Remove the lab: end the processes in its namespaces (SIGTERM, SIGKILL after 2 s), then remove devices
and namespaces, and what a gateway in them has pinned. Where no lab is up there is nothing to do, which is no error.`,
		Example: "  sudo softdpu lab down\n  sudo softdpu lab down --prefix mine",
		Args:    takes(0),
		RunE: func(*cobra.Command, []string) error {
			removed, err := testenv.Down(*prefix)
			if err != nil {
				return err
			}
			if removed {
				env.note("lab %s is removed", *prefix)
			} else {
				env.note("no lab %s is up", *prefix)
			}
			return nil
		},
	}
}

func newLabExecCommand(env *Env, prefix *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec NODE [--] COMMAND [ARGUMENT...]",
		Short: "Run a command in one of the lab's namespaces",
		Long: `Run a command in one of the lab's namespaces, with this terminal, and end with its exit code. NODE is
the short name (client) or the namespace's (sdpu-client). The command has a mount namespace of its
own, with a /sys that shows its devices: what it pins under /sys/fs/bpf ends with it.`,
		Example: `  sudo softdpu lab exec client -- ping -c 3 10.10.1.1
  sudo softdpu lab exec sdpu-server -- tcpdump -ni s0
  sudo softdpu lab exec gw -- bash`,
		Args: func(cmd *cobra.Command, args []string) error {
			if node, command := splitExec(args); node == "" || len(command) == 0 {
				return usagef(cmd, "%s needs a NODE and a COMMAND", cmd.CommandPath())
			}
			return nil
		},
		ValidArgsFunction: complete(func() []string { return nodesOf(*prefix) }),
	}
	cmd.Flags().SetInterspersed(false) // flags after NODE are the command's
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		l, err := testenv.Open(*prefix)
		if errors.Is(err, testenv.ErrNoLab) {
			return fmt.Errorf("no lab %s is up: build one with 'softdpu lab up client-server'", *prefix)
		}
		if err != nil {
			return err
		}
		node, command := splitExec(args)
		n, err := l.Namespace(node)
		if err != nil {
			return usagef(cmd, "%w%s", err, suggestion(node, nodesOf(*prefix)))
		}
		return execIn(cmd.Context(), env, n, command)
	}
	return cmd
}

// splitExec separates the node from the command line, with or without "--" between them.
func splitExec(args []string) (node string, command []string) {
	if len(args) == 0 {
		return "", nil
	}
	node, command = args[0], args[1:]
	if len(command) > 0 && command[0] == "--" {
		command = command[1:]
	}
	return node, command
}

// nodesOf returns the short names of the lab's nodes, none if it cannot be looked at.
func nodesOf(prefix string) []string {
	l, err := testenv.Open(prefix)
	if err != nil {
		return nil
	}
	var names []string
	for _, n := range l.Topology.Nodes {
		names = append(names, n.Name)
	}
	return names
}

// execIn runs the command to its end, whatever its exit code, which becomes ours. On a terminal the
// command gets Ctrl-C from there, as we do, and decides itself what it means; a shell goes on.
func execIn(ctx context.Context, env *Env, n *testenv.Namespace, command []string) error {
	c := n.Command(ctx, command[0], command[1:]...)
	c.Stdin, c.Stdout, c.Stderr = env.Stdin, env.Stdout, env.Stderr
	c.Cancel = func() error {
		if f, ok := env.Stdin.(*os.File); ok && isTerminal(f) {
			return nil
		}
		return c.Process.Signal(syscall.SIGTERM)
	}
	err := c.Run()
	if c.ProcessState == nil {
		if errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("run %s in %s: %w: install iproute2", command[0], n.Name(), err)
		}
		return fmt.Errorf("run %s in %s: %w", command[0], n.Name(), err)
	}
	status := c.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case status.Signaled():
		return &codeError{code: 128 + int(status.Signal())} // as shells do
	case status.ExitStatus() != 0:
		return &codeError{code: status.ExitStatus()}
	}
	return nil
}

func newLabListCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the labs that are up, with devices and addresses",
		Example: "  sudo softdpu lab list\n  sudo softdpu lab list -o json",
		Args:    takes(0),
	}
	format := addOutputFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		labs, err := testenv.List()
		if err != nil {
			return err
		}
		if len(labs) == 0 && !format.json {
			env.note("no lab is up: build one with 'softdpu lab up client-server'")
			return nil
		}
		t := newTable("LAB", "TOPOLOGY", "NAMESPACE", "DEVICE", "PEER", "STATE", ">MTU", "ADDRESSES")
		for _, l := range labs {
			for _, n := range l.Namespaces {
				if len(n.Devices) == 0 {
					t.add(l.Prefix, l.Topology, n.Name, "-", "-", "missing", "-", "-")
				}
				for _, d := range n.Devices {
					t.add(l.Prefix, l.Topology, n.Name, d.Name, d.Peer, d.State, d.MTU, addressList(d))
				}
			}
		}
		return format.print(env, labs, t)
	}
	return cmd
}

func addressList(d testenv.DeviceStatus) string {
	if len(d.Addresses) == 0 {
		return "-"
	}
	var list []string
	for _, a := range d.Addresses {
		list = append(list, a.String())
	}
	return strings.Join(list, " ")
}
