package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func newManCommand(*Env) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write the manual pages",
		Hidden: true, // who builds packages needs it
		Long: `Write a manual page for every verb into the directory, for packages. Its date is that of
SOURCE_DATE_EPOCH, where it is set.`,
		Example: "  softdpu man /tmp/man1",
		Args:    takes(0, "a DIRECTORY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			date := time.Now().UTC()
			if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
				seconds, err := strconv.ParseInt(epoch, 10, 64)
				if err != nil {
					return fmt.Errorf("read SOURCE_DATE_EPOCH: %w", err)
				}
				date = time.Unix(seconds, 0).UTC()
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			if err := doc.GenManTree(root, &doc.GenManHeader{
				Section: "1", Date: &date, Source: "softdpu " + version().Version, Manual: "softdpu",
			}, args[0]); err != nil {
				return fmt.Errorf("write manual pages: %w", err)
			}
			return nil
		},
	}
}
