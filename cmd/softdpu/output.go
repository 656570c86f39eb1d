package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// outputFormat is the flag -o of every reading verb. The zero value is the table.
type outputFormat struct{ json bool }

// addOutputFlag gives the command the flag -o.
func addOutputFlag(cmd *cobra.Command) *outputFormat {
	f := &outputFormat{}
	cmd.Flags().VarP(f, "output", "o", "what to print: table or json")
	// The flag exists, so this cannot fail.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return f
}

// String implements pflag.Value.
func (f *outputFormat) String() string {
	if f.json {
		return "json"
	}
	return "table"
}

// Set implements pflag.Value.
func (f *outputFormat) Set(s string) error {
	switch s {
	case "table":
		f.json = false
	case "json":
		f.json = true
	default:
		return fmt.Errorf("it must be table or json%s", suggestion(s, []string{"table", "json"}))
	}
	return nil
}

// Type implements pflag.Value.
func (f *outputFormat) Type() string { return "table|json" }

// print writes v as JSON or the table, whichever was asked for.
func (f *outputFormat) print(env *Env, v any, t *table) error {
	if f.json {
		return printJSON(env.Stdout, v)
	}
	return t.write(env.Stdout, env.Width())
}

// printJSON writes v as indented JSON with a line feed after it.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return nil
}
