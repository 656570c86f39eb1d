package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/softdpu/softdpu/gateway"
)

// defaultConfig is where a machine's configuration lies.
const defaultConfig = "/etc/softdpu/softdpu.yaml"

func newRunCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the gateway in this network namespace",
		Long: `Run the gateway in this network namespace until SIGINT or SIGTERM.

Configuration, policy and the policy's own tests are checked before anything is touched. Then the
policy is put in force, and the ports are taken: the egress guard and XDP first, the kernel's
forwarding last. What was chosen, and why not better, is said once, on the error output. What an earlier
run has left is taken over, flows included. A clean stop leaves what on_stop says; a crash leaves the last
policy in force. 'softdpu detach' takes it all off.

SIGHUP puts configuration and policy in force as they are written then, as 'softdpu policy apply' does.`,
		Example: `  sudo softdpu run
  sudo softdpu run -c softdpu.yaml
  sudo softdpu lab exec gw -- softdpu run -c softdpu.yaml`,
		Args: takes(0),
	}
	file := cmd.Flags().StringP("config", "c", defaultConfig, "the gateway's configuration")
	logging := addLogFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		reload := make(chan os.Signal, 1)
		signal.Notify(reload, unix.SIGHUP)
		defer signal.Stop(reload)
		log, toJournal := logging.logger(env)
		err := gateway.RunFile(cmd.Context(), *file, gateway.Options{
			Reload:     reload,
			Log:        log,
			Version:    version().Version,
			Supervisor: gateway.NewSupervisor(log),
		})
		if _, missing := os.Stat(*file); errors.Is(missing, fs.ErrNotExist) && *file == defaultConfig {
			err = fmt.Errorf("%w: 'softdpu policy init' writes one to begin with", err)
		}
		if err != nil && toJournal {
			log.Error(err.Error())
			return &codeError{code: exitError}
		}
		return err
	}
	return cmd
}
