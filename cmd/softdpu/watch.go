package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const (
	watchInterval = time.Second
	keyInterval   = 50 * time.Millisecond // between looks for a key
	// Rows where the terminal does not say how many it has, or is none.
	watchRows = 24
)

// A watcher is the flags --watch and --sort of a reading verb.
type watcher struct {
	on    *bool
	sort  *string
	sorts []string
}

// addWatchFlags gives the command --watch, and --sort with the first of sorts as its default.
func addWatchFlags(cmd *cobra.Command, sorts ...string) *watcher {
	w := &watcher{sorts: sorts}
	w.on = cmd.Flags().Bool("watch", false, "show it anew each second, until q or Ctrl-C")
	w.sort = cmd.Flags().String("sort", sorts[0], "what comes first with --watch: "+strings.Join(sorts, ", "))
	// The flag exists, so this cannot fail.
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(sorts, cobra.ShellCompDirectiveNoFileComp))
	return w
}

// check refuses what cannot go together.
func (w *watcher) check(cmd *cobra.Command, format *outputFormat) error {
	known := false
	for _, s := range w.sorts {
		known = known || s == *w.sort
	}
	switch {
	case !known:
		return usagef(cmd, "--sort must be one of %s%s", strings.Join(w.sorts, ", "), suggestion(*w.sort, w.sorts))
	case *w.on && format.json:
		return usagef(cmd, "--watch prints tables: ask for -o json once a second instead")
	case !*w.on && cmd.Flags().Changed("sort"):
		return usagef(cmd, "--sort goes with --watch")
	}
	return nil
}

// A frame is one picture: a title, a table, and what stands below it.
type frame struct {
	title string
	table *table
	below string
}

// watch shows what next returns, each second, until ctx is done or somebody presses q. It is given the
// rows that the table has room for, and the time since the frame before, 0 for the first. On a terminal
// each frame takes the place of the one before; elsewhere they follow each other.
func watch(ctx context.Context, env *Env, next func(ctx context.Context, rows int, since time.Duration) (frame, error)) error {
	w := &watching{env: env}
	out, _ := env.Stdout.(*os.File)
	if out != nil && isTerminal(out) {
		in, _ := env.Stdin.(*os.File)
		s, err := openScreen(in, out)
		if err != nil {
			return err
		}
		defer s.close()
		w.screen = s
	}
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	var last time.Time
	for {
		rows, columns := w.size()
		now := time.Now()
		since := time.Duration(0)
		if !last.IsZero() {
			since = now.Sub(last)
		}
		last = now
		f, err := next(ctx, max(1, rows-4), since)
		if err == nil {
			err = w.show(&f, rows, columns)
		}
		if err != nil {
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil
			}
			return err
		}
		if w.wait(ctx, ticker.C) {
			return nil
		}
	}
}

type watching struct {
	env    *Env
	screen *screen // nil: no terminal
	frames int
}

// size returns the rows and columns there are; without a terminal no line is cut.
func (w *watching) size() (rows, columns int) {
	if w.screen == nil {
		return watchRows, 0
	}
	if rows, columns = terminalSize(w.screen.out); rows == 0 {
		rows = watchRows
	}
	return rows, columns
}

// wait returns when the next frame is due, or with true when it is over.
func (w *watching) wait(ctx context.Context, tick <-chan time.Time) bool {
	keys := time.NewTicker(keyInterval)
	defer keys.Stop()
	for {
		select {
		case <-ctx.Done():
			return true
		case <-tick:
			return false
		case <-keys.C:
			if w.screen != nil && w.screen.key() == 'q' {
				return true
			}
		}
	}
}

// show writes a frame, on a terminal over the one before and no higher than that.
func (w *watching) show(f *frame, rows, columns int) error {
	var b strings.Builder
	if err := f.table.write(&b, columns); err != nil {
		return err
	}
	lines := append([]string{f.title, ""}, strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")...)
	if f.below != "" {
		lines = append(lines, f.below)
	}
	text := strings.Join(lines, "\n") + "\n"
	if w.screen != nil {
		for i := range lines {
			if columns > 0 {
				lines[i] = cut(lines[i], columns)
			}
		}
		// Line by line over what stood there, so that nothing flickers.
		text = cursorHome + strings.Join(lines[:min(len(lines), rows)], clearToEOL+"\r\n") + clearToEOL + clearBelow
	} else if w.frames > 0 {
		text = "\n" + text
	}
	w.frames++
	if _, err := io.WriteString(w.env.Stdout, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// perSecond is a counter's rate since it was read before, 0 if it has begun anew.
func perSecond(now, before uint64, since time.Duration) float64 {
	if since <= 0 || now < before {
		return 0
	}
	return float64(now-before) / since.Seconds()
}

// rate renders a number a second as count does.
func rate(v float64) string {
	if v > 0 && v < 10 {
		return fmt.Sprintf("%.1f", v)
	}
	return count(uint64(v + 0.5))
}
