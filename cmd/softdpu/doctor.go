package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/gateway/doctor"
)

func newDoctorCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what keeps this machine from being a good gateway",
		Long: `Look for what keeps this machine from being a good gateway, and say what to do about it: kernel and
rights, configuration and policy, memory and files, the devices of the ports (drivers, offloads, VLAN tags,
MTU, other programs, the other ends of veths), the kernel's own filters, and the running gateway. Nothing
is changed, and no program is attached. It looks at the network namespace that it is started in, and works
without a running gateway.

The exit code is 1 if there is an error among the findings.`,
		Example: `  sudo softdpu doctor
  sudo softdpu doctor -c softdpu.yaml -o json
  sudo softdpu lab exec gw -- softdpu doctor -c softdpu.yaml`,
		Args: takes(0),
	}
	format := addOutputFlag(cmd)
	file := cmd.Flags().StringP("config", "c", defaultConfig, "the gateway's configuration")
	socket := cmd.Flags().String("socket", "", "control socket of the daemon to ask; the configuration's if left out")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		report, err := doctor.Run(cmd.Context(), doctor.Options{Config: *file, Socket: *socket})
		if err != nil {
			return err
		}
		if format.json {
			err = printJSON(env.Stdout, report)
		} else {
			err = writeFindings(env.Stdout, report, env.Width())
		}
		if err == nil && report.Worst() == doctor.Error {
			err = answerNo(nil)
		}
		return err
	}
	return cmd
}

// writeFindings prints findings for people, in lines of a terminal's width.
func writeFindings(w io.Writer, r *doctor.Report, width int) error {
	if width == 0 {
		width = statusWidth
	}
	p := &statusPrinter{width: width}
	counts := make(map[doctor.Severity]int)
	indent := strings.Repeat(" ", 9)
	for _, f := range r.Findings {
		counts[f.Severity]++
		subject := f.Check
		if f.Port != "" {
			subject = "port " + f.Port + ", " + f.Check
		}
		p.wrap(fmt.Sprintf("%-9s", f.Severity), indent, subject+": "+f.Found)
		if f.Remedy != "" {
			p.wrap(indent+"= ", indent+"  ", f.Remedy)
		}
	}
	fmt.Fprintf(&p.b, "\n%s, %s, %d to know\n", quantity(counts[doctor.Error], "error"), quantity(counts[doctor.Warning], "warning"), counts[doctor.Info])
	if s := r.Status; s != nil {
		fmt.Fprintf(&p.b, "softdpu %s runs as process %d with %s: see 'softdpu status'\n", visible(s.Version), s.PID, quantity(len(s.Ports), "port"))
	}
	if _, err := io.WriteString(w, p.b.String()); err != nil {
		return fmt.Errorf("print findings: %w", err)
	}
	return nil
}
