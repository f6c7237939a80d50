package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// distlock runs the program.
func distlock(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(ctx, env{strings.NewReader(""), &out, &errs}, args)
	return code, out.String(), errs.String()
}

func TestBench(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "results")
	code, out, errs := distlock(t.Context(), "bench", "-backends", "memory", "-duration", "300ms", "-out", dir)
	if code != exitOK || !strings.Contains(out, "acquire latency") || !strings.Contains(errs, "[ 2/8] memory: one caller") {
		t.Errorf("exit %d\n%s\n%s", code, out, errs)
	}
	md, err := os.ReadFile(filepath.Join(dir, "report.md"))
	if err != nil || !strings.HasPrefix(string(md), "# ") {
		t.Errorf("report.md: %v\n%s", err, md)
	}
	js, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil || !json.Valid(js) {
		t.Errorf("report.json: %v\n%s", err, js)
	}
}

func TestBenchJSON(t *testing.T) {
	code, out, errs := distlock(t.Context(), "bench", "-backends", "memory", "-workloads", "alone", "-duration", "300ms", "-json", "-quiet", "-out", "")
	if code != exitOK || !json.Valid([]byte(out)) || errs != "" {
		t.Errorf("exit %d\n%s\n%s", code, out, errs)
	}
}

func TestBenchInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := t.TempDir()
	code, out, _ := distlock(ctx, "bench", "-backends", "memory", "-out", dir)
	if code != exitInterrupted || !strings.Contains(out, "Interrupted") {
		t.Errorf("exit %d\n%s", code, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "report.json")); err != nil {
		t.Error(err)
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, exitOK, "bench"},
		{[]string{"help"}, exitOK, "bench"},
		{[]string{"bench", "-h"}, exitOK, "-backends"},
		{[]string{"fly"}, exitUsage, `unknown command "fly"`},
		{[]string{"bench", "-wings"}, exitUsage, "-wings"},
		{[]string{"bench", "now"}, exitUsage, `unexpected argument "now"`},
		{[]string{"bench", "-backends", "abacus"}, exitUsage, "there is redis"},
		{[]string{"bench", "-backends", ","}, exitUsage, "the list is empty"},
	} {
		code, out, errs := distlock(t.Context(), c.args...)
		if code != c.code || !strings.Contains(out+errs, c.says) {
			t.Errorf("%q: exit %d, want %d\n%s%s", c.args, code, c.code, out, errs)
		}
		if len(c.args) == 0 && strings.Contains(out, holdCommand) {
			t.Errorf("the hidden command is listed:\n%s", out)
		}
	}
}
