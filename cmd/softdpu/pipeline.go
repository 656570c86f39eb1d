package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/flowtable/pipe"
	"github.com/softdpu/softdpu/flowtable/pipe/pipefile"
	"github.com/softdpu/softdpu/gateway"
)

func newPipelineCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pipeline",
		Short: "Match/action pipes in front of the policy: check, apply, show, trace, change entries",
		Long: `A pipeline is a file of match/action pipes: tables that packets walk through before the policy sees them.
Entries match on fields, change them, count, meter and mirror, and forward to another pipe, a port, the
host, the policy, or nowhere. It compiles to instructions and maps of XDP.`,
		Example: `  softdpu pipeline check edge.yaml
  sudo softdpu pipeline apply edge.yaml -m 'CHG-4711'
  sudo softdpu pipeline show --plan
  sudo softdpu pipeline trace --count 10`,
	}
	cmd.AddCommand(newPipelineCheckCommand(env), newPipelineApplyCommand(env), newPipelineRemoveCommand(env), newPipelineShowCommand(env), newPipelineTraceCommand(env),
		newPipelineEntriesCommand(env), newPipelineEntryCommand(env))
	return group(cmd)
}

// compilePipelineFile reads a pipeline and compiles it for ports with the names that it uses.
func compilePipelineFile(env *Env, path string) (*pipe.Program, error) {
	parsed, warnings, err := pipefile.Load(path)
	if err != nil {
		return nil, faults(err)
	}
	for _, w := range warnings {
		env.note("%s", visible(w.Error()))
	}
	ids := make(map[string]uint32)
	for i, name := range parsed.PortNames() {
		ids[name] = uint32(i) + 1
	}
	resolved, err := parsed.Resolve(ids)
	if err != nil {
		return nil, faults(err)
	}
	prog, err := pipe.Compile(resolved, pipe.Options{})
	if err != nil {
		return nil, err
	}
	_, _, err = prog.Instructions()
	return prog, err
}

// faults says how much is wrong with a file, and what.
func faults(err error) error {
	var errs firewall.Errors
	if errors.As(err, &errs) {
		return fmt.Errorf("%s:\n%s", quantity(len(errs), "error"), errs)
	}
	return err
}

// unchanged says what is wrong with a text that a person named, for which nothing was changed. Sent is what the gateway calls it.
func unchanged(err error, sent, name string) error {
	var errs firewall.Errors
	if !errors.As(err, &errs) {
		return err
	}
	for i := range errs {
		if errs[i].File == sent {
			errs[i].File = name
		}
	}
	return fmt.Errorf("%s, nothing was changed:\n%s", quantity(len(errs), "error"), errs)
}

func newPipelineCheckCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check and compile a pipeline without touching anything",
		Long: `Read the pipeline of a file, check what its kinds of pipes can do and what not, and compile it. Each mistake
is told with file, line, column and remedy. It needs neither root nor a gateway; names of ports are
compared with those of the gateway by 'pipeline apply'.

Exit code 0: it can be applied. 2: it has mistakes, or the file cannot be read.`,
		Example: `  softdpu pipeline check edge.yaml`,
		Args:    takes(0, "FILE"),
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		prog, err := compilePipelineFile(env, args[0])
		if err != nil {
			return err
		}
		r := prog.Report(0, 0)
		entries := 0
		for i := range r.Pipes {
			entries += r.Pipes[i].Total
		}
		_, err = fmt.Fprintf(env.Stdout, "%s: %s, %s, %s\n", r.Name, quantity(len(r.Pipes), "pipe"), quantityOf(entries, "entry", "entries"), quantity(r.Instructions, "instruction"))
		return err
	}
	return cmd
}

func newPipelineApplyCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Put a pipeline in front of the running gateway's policy",
		Long: `Put the pipeline of a file in front of the running gateway's policy, in the place of another one if there is
one, in one step: no packet sees parts of two and none is lost. Entries that the one before had under the
same name, or with the same match in a pipe of the same name, keep their counts. The gateway keeps a
copy, which stays through reloads and restarts until 'pipeline remove'. - is the standard input. It needs
root.

Exit code 0: it is in force. 2: it has mistakes, or names a port that the gateway does not have; nothing was
changed.`,
		Example: `  sudo softdpu pipeline apply edge.yaml -m 'CHG-4711'`,
		Args:    takes(0, "FILE"),
	}
	format, socket, comment := addOutputFlag(cmd), addSocketFlag(cmd), addCommentFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		text, err := openInput(env, args[0], "the pipeline")
		if err != nil {
			return err
		}
		defer text.close()
		done, err := gateway.NewClient(*socket).ApplyPipeline(cmd.Context(), *comment, text)
		if err != nil {
			return unchanged(err, "pipeline", text.name)
		}
		for _, w := range done.Warnings {
			env.note("%s:%d: %s", text.name, w.Line, visible(w.Message))
		}
		if format.json {
			return printJSON(env.Stdout, done)
		}
		place := ""
		if done.Replaced != "" {
			place = ", in the place of " + visible(done.Replaced)
		}
		_, err = fmt.Fprintf(env.Stdout, "%s is in force: %s, %s%s\n", visible(done.Name), quantity(done.Pipes, "pipe"), quantityOf(done.Entries, "entry", "entries"), place)
		return err
	}
	return cmd
}

func newPipelineRemoveCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove",
		Short: "Take the pipeline in front of the policy away",
		Long: `Take the pipeline in front of the running gateway's policy away, in one step: the next packet goes to the policy
at once. It needs root.`,
		Example: `  sudo softdpu pipeline remove`,
		Args:    takes(0),
	}
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		done, err := gateway.NewClient(*socket).RemovePipeline(cmd.Context())
		if err != nil {
			return err
		}
		if format.json {
			return printJSON(env.Stdout, done)
		}
		text := "there was no pipeline"
		if done.Name != "" {
			text = visible(done.Name) + " is out of force"
		}
		_, err = fmt.Fprintln(env.Stdout, text)
		return err
	}
	return cmd
}
