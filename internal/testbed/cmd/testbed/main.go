// Command testbed prepares what the tests' servers need:
//
//	testbed etcd    build etcd if it is not built yet, and print its path
//	testbed check   start one server of each kind, and say what is missing
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"example.com/distlock/internal/testbed"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) != 2 {
		usage()
	}
	var err error
	switch os.Args[1] {
	case "etcd":
		var path string
		if path, err = testbed.EtcdBinary(ctx); err == nil {
			fmt.Println(path)
		}
	case "check":
		err = check(ctx)
	default:
		usage()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: testbed etcd|check")
	os.Exit(2)
}

func check(ctx context.Context) (err error) {
	b, err := testbed.Open(ctx, testbed.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	var errs []error
	for _, s := range []struct {
		what  string
		start func() error
	}{
		{"redis", func() error { _, err := b.Redis(ctx); return err }},
		{"zookeeper", func() error { _, err := b.ZooKeeper(ctx, 1); return err }},
		{"etcd", func() error { _, err := b.Etcd(ctx, 1); return err }},
	} {
		start := time.Now()
		if err := s.start(); err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Printf("%-10s answers after %v\n", s.what, time.Since(start).Round(time.Millisecond))
	}
	return errors.Join(errs...)
}
