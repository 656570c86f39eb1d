package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// A choice is the value of a flag that takes one of several words.
type choice struct {
	value string
	of    []string
}

func (c *choice) addTo(cmd *cobra.Command, name, usage string) {
	cmd.Flags().Var(c, name, usage)
	// The flag exists, so this cannot fail.
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(c.of, cobra.ShellCompDirectiveNoFileComp))
}

// String implements pflag.Value.
func (c *choice) String() string { return c.value }

// Set implements pflag.Value.
func (c *choice) Set(s string) error {
	if !slices.Contains(c.of, s) {
		return fmt.Errorf("it must be one of %s%s", strings.Join(c.of, ", "), suggestion(s, c.of))
	}
	c.value = s
	return nil
}

// Type implements pflag.Value.
func (c *choice) Type() string { return strings.Join(c.of, "|") }
