package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/distlock/bench"
)

const (
	holdCommand     = bench.HoldCommand
	exitInterrupted = 130 // as a shell reports a program that Ctrl-C ended
)

func runBench(ctx context.Context, env env, args []string) error {
	flags := flag.NewFlagSet("distlock bench", flag.ContinueOnError)
	var cfg bench.Config
	flags.Func("backends", "`list` to measure, of "+strings.Join(bench.Backends, ",")+" (default "+strings.Join(bench.Default, ",")+")", list(&cfg.Backends))
	flags.Func("workloads", "`list` to run, of "+strings.Join(bench.Workloads, ",")+" (default all)", list(&cfg.Workloads))
	flags.DurationVar(&cfg.Duration, "duration", 3*time.Second, "of each closed loop, after its warm-up")
	flags.DurationVar(&cfg.TTL, "ttl", 10*time.Second, "of the locks in closed loops")
	flags.DurationVar(&cfg.CrashTTL, "crash-ttl", 3*time.Second, "of the locks whose holder is killed")
	flags.IntVar(&cfg.Crashes, "crashes", 5, "processes to kill, per backend")
	flags.StringVar(&cfg.Provider, "provider", "", "of the servers: auto, containers, processes or external; external ones by\nDISTLOCK_TESTBED_REDIS, …_ZOOKEEPER, …_ETCD (default $DISTLOCK_TESTBED, else auto)")
	var (
		short  = flags.Bool("short", false, "one quick pass: -duration 1s -crash-ttl 2s -crashes 1, unless given")
		quiet  = flags.Bool("quiet", false, "show no progress")
		asJSON = flags.Bool("json", false, "print JSON instead of the table")
		out    = flags.String("out", "bench-results", "`folder` for report.md and report.json; empty writes none")
	)
	if err := parse(env, flags, args); err != nil {
		return err
	}
	if *short {
		given := map[string]bool{}
		flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
		for name, value := range map[string]string{"duration": "1s", "crash-ttl": "2s", "crashes": "1"} {
			if !given[name] {
				if err := flags.Set(name, value); err != nil {
					return err
				}
			}
		}
	}
	if !*quiet {
		cfg.Progress = env.stderr
	}

	// Servers are killed on purpose; the report says what came of it.
	redis.SetLogger(silent{})
	report, err := bench.Run(ctx, cfg)
	if err != nil {
		return &statusError{exitUsage, err}
	}
	write := report.WriteTerminal
	if *asJSON {
		write = report.WriteJSON
	}
	if err := write(env.stdout); err != nil {
		return err
	}
	if *out != "" {
		if err := writeFiles(*out, report); err != nil {
			return err
		}
		fmt.Fprintf(env.stderr, "written: %s and report.json beside it\n", filepath.Join(*out, "report.md"))
	}
	err = report.Err()
	if errors.Is(err, bench.ErrInterrupted) {
		return &statusError{exitInterrupted, err}
	}
	return err
}

// silent drops what the Redis client logs about connections.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// list parses a comma-separated list.
func list(to *[]string) func(string) error {
	return func(s string) error {
		*to = nil
		for item := range strings.SplitSeq(s, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*to = append(*to, item)
			}
		}
		if len(*to) == 0 {
			return errors.New("the list is empty")
		}
		return nil
	}
}

func writeFiles(dir string, report *bench.Report) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for name, write := range map[string]func(io.Writer) error{
		"report.md": report.WriteMarkdown, "report.json": report.WriteJSON,
	} {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if err := errors.Join(write(f), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// runHold is the process that the crash workload kills.
func runHold(ctx context.Context, env env, args []string) error {
	return bench.HoldMain(ctx, args, env.stdin, env.stdout)
}
