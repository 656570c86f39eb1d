package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/softdpu/softdpu/firewall"
	"github.com/softdpu/softdpu/gateway"
)

func newSetReplaceCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replace NAME FILE",
		Short: "Have a set of the running gateway hold what a file says",
		Long: `Have a set of the running gateway's policy hold the entries of a file, and nothing else: one a line, with
# before comments, up to millions; - is the standard input. All of them take the place of all that the
set holds, in one step: no packet sees a part. When the command returns they are in force, connections
that are no longer allowed are cut with their next packet, and all others do not notice.

The gateway keeps a copy, which stays through reloads, restarts and reboots whatever the policy or the
set's own file says, until the next replace, or until 'set del NAME --all'. What the set was given one by
one before is forgotten; 'set add' and 'set del' change the list from then on. It needs root.

Exit code 0: the list is in force. 2: it has a wrong entry, or the policy has no such set; nothing was
changed.`,
		Example: `  sudo softdpu set replace threats feed.txt
  grep -v internal feed.txt | sudo softdpu set replace threats - --comment 'feed of today'
  sudo softdpu set del threats --all          # what the policy says again`,
		Args: takes(0, "NAME", "FILE"),
	}
	format, socket := addOutputFlag(cmd), addSocketFlag(cmd)
	comment := cmd.Flags().String("comment", "", "why, for those who list the set")
	cmd.ValidArgsFunction = completeSets(socket)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		text, err := openInput(env, args[1], "the list")
		if err != nil {
			return err
		}
		defer text.close()
		done, err := gateway.NewClient(*socket).ReplaceSet(cmd.Context(), args[0], *comment, text)
		var errs firewall.Errors
		if errors.As(err, &errs) {
			for i := range errs {
				errs[i].File = text.name
			}
			return fmt.Errorf("%s, nothing was changed:\n%s", quantity(len(errs), "error"), errs)
		}
		if err != nil {
			return err
		}
		if format.json {
			return printJSON(env.Stdout, done)
		}
		return reportSetChanged(env, done)
	}
	return cmd
}
