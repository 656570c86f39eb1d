package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/deploy"
	"github.com/softdpu/softdpu/gateway"
	"github.com/softdpu/softdpu/testenv"
)

// demoExample is the folder of deploy's examples that the demo runs.
const demoExample = "examples/client-server"

func newDemoCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch real traffic pass, and be refused, and why",
		Long: `Build the lab client-server, run the gateway of deploy/examples/client-server in it, send real traffic
through it, and show of every attempt what came of it and what decided. Everything is removed at the
end. It takes some ten seconds.

The demo checks itself: if an attempt ends otherwise than the policy says, the exit code is 1. A lab
that is up under the same prefix is removed first.`,
		Example: `  sudo softdpu lab demo
  sudo softdpu lab demo --prefix mine`,
		Args: takes(0),
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		prefix, err := cmd.Flags().GetString("prefix")
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Minute)
		defer cancel()
		return runDemo(ctx, env, prefix)
	}
	return cmd
}

// A demo is a lab with a gateway and servers in it.
type demo struct {
	env                     *Env
	client, gateway, server *testenv.Namespace
	config                  *gateway.Config
	api                     *gateway.Client
	echo                    []*testenv.Echo // by family: IPv4, IPv6
	web                     []*testenv.HTTPServer
	cleanup                 []func() error // in the order of making
}

// runDemo builds, tries, tells and removes.
func runDemo(ctx context.Context, env *Env, prefix string) (err error) {
	d := &demo{env: env}
	defer func() {
		for i := len(d.cleanup) - 1; i >= 0; i-- {
			err = errors.Join(err, d.cleanup[i]())
		}
	}()
	env.note("building the lab, starting the gateway ...")
	lab, err := d.build(ctx, prefix)
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Stdout, "%s\n", picture(lab))
	var attempts []attempt
	for _, a := range d.attempts() {
		env.progress("trying: " + a.what + " ...")
		if err := d.carryOut(ctx, &a); err != nil {
			return fmt.Errorf("demo: %s: %w", a.what, err)
		}
		attempts = append(attempts, a)
	}
	env.progress("")
	return d.tell(ctx, attempts)
}

// build brings everything up.
func (d *demo) build(ctx context.Context, prefix string) (*testenv.Lab, error) {
	lab, err := testenv.Up("client-server", testenv.Options{Prefix: prefix})
	if err != nil {
		return nil, err
	}
	d.cleanup = append(d.cleanup, func() error {
		_, err := testenv.Down(prefix)
		return err
	})
	for name, to := range map[string]**testenv.Namespace{"client": &d.client, testenv.Gateway: &d.gateway, "server": &d.server} {
		if *to, err = lab.Namespace(name); err != nil {
			return nil, err
		}
	}
	if err := d.configure(); err != nil {
		return nil, err
	}
	if err := d.start(ctx); err != nil {
		return nil, err
	}
	return lab, d.serve(ctx)
}

// configure writes the example into a folder of its own and reads it. Socket and events file are put
// beside it: the machine may have a gateway of its own.
func (d *demo) configure() error {
	dir, err := os.MkdirTemp("", "softdpu-demo-")
	if err != nil {
		return fmt.Errorf("make a folder for the demo: %w", err)
	}
	d.cleanup = append(d.cleanup, func() error { return os.RemoveAll(dir) })
	example, err := fs.Sub(deploy.ClientServer, demoExample)
	if err == nil {
		err = os.CopyFS(dir, example)
	}
	if err != nil {
		return fmt.Errorf("write the demo's configuration: %w", err)
	}
	if d.config, err = gateway.LoadConfig(filepath.Join(dir, "softdpu.yaml")); err != nil {
		return err
	}
	d.config.Control.Socket = filepath.Join(dir, "softdpu.sock")
	d.config.Events.File = filepath.Join(dir, "eve.json")
	d.config.State = filepath.Join(dir, "state")
	d.api = gateway.NewClient(d.config.Control.Socket)
	return nil
}

// start runs the gateway in its namespace and waits until it judges packets.
func (d *demo) start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var log bytes.Buffer // read only when Run has ended
	ready, done := make(chan struct{}), make(chan error, 1)
	options := gateway.Options{
		Log: slog.New(slog.NewTextHandler(&log, nil)), Version: version().Version, Ready: func() { close(ready) },
	}
	go func() {
		done <- d.gateway.Do(func() error { return gateway.Run(ctx, d.config, options) })
	}()
	select {
	case <-ready:
		d.cleanup = append(d.cleanup, func() error {
			cancel()
			return <-done
		})
		return nil
	case err := <-done:
		cancel()
		return errors.Join(err, fmt.Errorf("the gateway did not start; it said:\n%s", log.String()))
	}
}

// serve starts the servers' side of the attempts.
func (d *demo) serve(ctx context.Context) error {
	for _, address := range demoServer {
		web, err := d.server.ServeHTTP(ctx, netip.AddrPortFrom(address, 80))
		if err != nil {
			return err
		}
		d.cleanup = append(d.cleanup, web.Close)
		echo, err := d.server.ServeEcho(ctx, netip.AddrPortFrom(address, 53))
		if err != nil {
			return err
		}
		d.cleanup = append(d.cleanup, echo.Close)
		d.web, d.echo = append(d.web, web), append(d.echo, echo)
	}
	return nil
}
