package testbed

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// EtcdBinary returns the path of an etcd server: the one in DISTLOCK_ETCD_BINARY,
// else the one that is built from the nested module etcdserver, once per version,
// into the user's cache directory. Building takes about half a minute; test
// binaries that need it at the same time wait for the one that builds.
func EtcdBinary(ctx context.Context) (string, error) {
	if path := os.Getenv("DISTLOCK_ETCD_BINARY"); path != "" {
		return path, nil
	}
	src, err := etcdSource()
	if err != nil {
		return "", missing("etcd", err.Error(), "builds etcd from its module")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.GOOS, runtime.GOARCH)
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		text, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			return "", err
		}
		sum.Write(text)
	}
	dir := filepath.Join(cache, "distlock", "etcd-"+hex.EncodeToString(sum.Sum(nil))[:12])
	path := filepath.Join(dir, "etcd")
	if exists(path) {
		return path, nil
	}
	if _, err := exec.LookPath("go"); err != nil {
		return "", missing("etcd", "it is not built, and go is not in PATH", "builds etcd from its module")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := waitLock(lock); err != nil {
		return "", err
	}
	if exists(path) { // another process has built it meanwhile
		return path, nil
	}
	// Without cgo, so that the binary runs in an empty container image too.
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path+".new", ".")
	cmd.Dir = src
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", &MissingError{
			What: "etcd",
			Why:  fmt.Sprintf("building it failed: %v: %s", err, bytes.TrimSpace(out)),
			Help: "run `make deps`, which shows why",
		}
	}
	return path, os.Rename(path+".new", path)
}

// etcdSource finds the nested module beside this file or, if the binary was
// built with -trimpath, from the working directory upwards.
func etcdSource() (string, error) {
	if _, file, _, ok := runtime.Caller(0); ok {
		if dir := filepath.Join(filepath.Dir(file), "etcdserver"); exists(filepath.Join(dir, "go.mod")) {
			return dir, nil
		}
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if src := filepath.Join(dir, "internal", "testbed", "etcdserver"); exists(filepath.Join(src, "go.mod")) {
			return src, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("the source of this module was not found")
		}
		dir = up
	}
}
