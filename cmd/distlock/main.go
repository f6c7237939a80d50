// Command distlock measures lock backends on real servers.
//
//	distlock bench [flags]
//
// "distlock help" lists the commands, "distlock <command> -h" the flags of one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// A command is one subcommand.
type command struct {
	name    string
	summary string // empty: not listed
	run     func(ctx context.Context, env env, args []string) error
}

// env is what a command may touch of the world, so that tests can give it another.
type env struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

var commands = []command{
	{"bench", "start servers, measure the backends side by side, write the comparison", runBench},
	{holdCommand, "", runHold},
}

func main() {
	// The first signal ends what runs in good order; a second one ends it at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, env{os.Stdin, os.Stdout, os.Stderr}, os.Args[1:]))
}

// Exit codes besides those that a command asks for with a statusError.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// run finds the command, runs it and returns the exit code.
func run(ctx context.Context, env env, args []string) int {
	name := "help"
	if len(args) > 0 {
		name = args[0]
	}
	for _, c := range commands {
		if c.name == name {
			return code(env, c, c.run(ctx, env, args[1:]))
		}
	}
	switch name {
	case "help", "-h", "-help", "--help":
		usage(env.stdout)
		return exitOK
	}
	fmt.Fprintf(env.stderr, "distlock: unknown command %q\n\n", name)
	usage(env.stderr)
	return exitUsage
}

// A statusError ends the program with a code of its own.
type statusError struct {
	code int
	err  error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

func code(env env, c command, err error) int {
	var status *statusError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.As(err, &status):
		fmt.Fprintf(env.stderr, "distlock %s: %v\n", c.name, err)
		return status.code
	}
	fmt.Fprintf(env.stderr, "distlock %s: %v\n", c.name, err)
	return exitError
}

// parse reads flags; what is wrong with them has been printed when it returns.
func parse(env env, flags *flag.FlagSet, args []string) error {
	flags.SetOutput(env.stderr)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return &statusError{exitUsage, errors.New("see -h")}
	}
	if flags.NArg() > 0 {
		return &statusError{exitUsage, fmt.Errorf("unexpected argument %q; see -h", flags.Arg(0))}
	}
	return nil
}

func usage(w io.Writer) {
	fmt.Fprint(w, "usage: distlock <command> [flags]\n\n")
	for _, c := range commands {
		if c.summary != "" {
			fmt.Fprintf(w, "  %-8s %s\n", c.name, c.summary)
		}
	}
	fmt.Fprint(w, "\ndistlock <command> -h lists the flags of a command.\n")
}
