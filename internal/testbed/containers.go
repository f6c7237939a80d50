package testbed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// images are the images that are used if there is nothing better: what the
// environment variable names, then what `make images` has built.
var images = map[kind]struct{ variable, local, registry string }{
	kindRedis:     {"DISTLOCK_IMAGE_REDIS", "distlock-redis:local", "redis:7"},
	kindZooKeeper: {"DISTLOCK_IMAGE_ZOOKEEPER", "distlock-zookeeper:local", "zookeeper:3.9"},
	kindEtcd:      {"DISTLOCK_IMAGE_ETCD", "distlock-etcd:local", "quay.io/coreos/etcd:v3.6.5"},
}

const (
	// A registry that cannot be reached often shows it by silence only.
	registryAnswers = 15 * time.Second
	pullTimeout     = 5 * time.Minute
	// While a failed pull is younger than this, auto does not try again, or every
	// test binary would wait.
	pullAgain = 30 * time.Minute
)

// containers runs servers in containers that share the host's network, so that
// clients, proxies and members find each other at the same loopback addresses as
// with local processes.
type containers struct {
	slot   *slot
	docker *testcontainers.DockerClient
	lib    *testcontainers.DockerProvider // uses docker
	images map[kind]string
}

// prepareLibrary tells testcontainers not to start its reaper, whose image may
// not be there either: containers are removed by us, by the janitor, or by the
// next bed that takes the slot. And not to write about each step.
var prepareLibrary = sync.OnceValue(func() error {
	log.SetDefault(log.NewNoopLogger())
	return os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
})

// newContainers returns a *MissingError if no engine answers or the images cannot
// be had. patient also tries a registry that has just failed to answer.
func newContainers(ctx context.Context, s *slot, patient bool) (_ *containers, err error) {
	if err := prepareLibrary(); err != nil {
		return nil, err
	}
	once, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	docker, err := testcontainers.NewDockerClientWithOpts(once)
	if err != nil {
		return nil, &MissingError{
			What: "containers",
			Why:  "no container engine answers: " + err.Error(),
			Help: "start one or set DISTLOCK_TESTBED=processes",
		}
	}
	defer func() {
		if err != nil {
			_ = docker.Close()
		}
	}()
	if host := docker.DaemonHost(); !strings.HasPrefix(host, "unix:") {
		return nil, &MissingError{
			What: "containers",
			Why:  "the engine at " + host + " may run on another machine, and its containers are reached at 127.0.0.1",
			Help: "use a local engine or set DISTLOCK_TESTBED=processes",
		}
	}
	// One client for everything, so that closing it leaves no connection behind.
	lib, err := testcontainers.NewDockerProvider()
	if err != nil {
		return nil, err
	}
	_ = lib.Close() // the client that it came with
	lib.SetClient(docker)
	c := &containers{slot: s, docker: docker, lib: lib, images: make(map[kind]string)}
	for k := range images {
		if c.images[k], err = c.image(ctx, k, patient); err != nil {
			return nil, err
		}
	}
	// What a bed left that was killed and had no janitor.
	return c, c.removeAll(ctx)
}

func (c *containers) image(ctx context.Context, k kind, patient bool) (string, error) {
	choice := images[k]
	name := os.Getenv(choice.variable)
	if name == "" {
		if c.hasImage(ctx, choice.local) {
			return choice.local, nil
		}
		name = choice.registry
	}
	if c.hasImage(ctx, name) {
		return name, nil
	}
	err := errors.New("the registry did not answer a short while ago")
	stamp := pullStamp()
	info, statErr := os.Stat(stamp)
	if patient || statErr != nil || time.Since(info.ModTime()) > pullAgain {
		if err = c.pull(ctx, name); err == nil {
			return name, nil
		}
		// Only saves time: without the stamp the next one waits, too.
		if os.MkdirAll(filepath.Dir(stamp), 0o755) == nil {
			_ = os.WriteFile(stamp, nil, 0o644)
		}
	}
	return "", &MissingError{
		What: fmt.Sprintf("image %s", name),
		Why:  "it is not here and cannot be pulled: " + err.Error(),
		Help: fmt.Sprintf("run `make images`, name another in %s, or set DISTLOCK_TESTBED=processes", choice.variable),
	}
}

func pullStamp() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = os.TempDir()
	}
	return filepath.Join(dir, "distlock", "registry-does-not-answer")
}

func (c *containers) hasImage(ctx context.Context, name string) bool {
	_, err := c.docker.ImageInspect(ctx, name)
	return err == nil
}

func (c *containers) pull(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	silence := time.AfterFunc(registryAnswers, cancel)
	pull, err := c.docker.ImagePull(ctx, name, client.ImagePullOptions{})
	if err != nil {
		return err
	}
	defer pull.Close()
	for message, err := range pull.JSONMessages(ctx) {
		silence.Stop()
		if err != nil {
			return err
		}
		if message.Error != nil {
			return message.Error
		}
	}
	return ctx.Err()
}

func (c *containers) describe() string {
	return fmt.Sprintf("%s, %s, %s", c.images[kindRedis], c.images[kindZooKeeper], c.images[kindEtcd])
}

func (c *containers) close() error { return c.docker.Close() }

// removeAll removes all containers of the slot.
func (c *containers) removeAll(ctx context.Context) error {
	list, err := c.docker.ContainerList(ctx, client.ContainerListOptions{
		All:     true,
		Filters: make(client.Filters).Add("label", c.slot.label()),
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, ctr := range list.Items {
		_, err := c.docker.ContainerRemove(ctx, ctr.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (c *containers) launch(ctx context.Context, s *spec) (instance, error) {
	ctr := &ctr{c: c, spec: s}
	return ctr, ctr.start(ctx)
}

// ctr is a server that runs in a container. Its data is the container's own: it
// survives a restart and goes with the container.
type ctr struct {
	c    *containers
	spec *spec
	id   string // empty while there is no container
}

func (c *ctr) start(ctx context.Context) error {
	if c.id != "" {
		_, err := c.c.docker.ContainerStart(ctx, c.id, client.ContainerStartOptions{})
		return err
	}
	req := testcontainers.ContainerRequest{
		Image:  c.c.images[c.spec.kind],
		Name:   fmt.Sprintf("distlock-%d-%s", c.spec.port, c.spec.name),
		Labels: map[string]string{labelKey: c.c.slot.dir},
		Env:    map[string]string{"JVMFLAGS": c.spec.jvm},
		HostConfigModifier: func(h *container.HostConfig) {
			h.NetworkMode = "host"
		},
	}
	switch c.spec.kind {
	case kindRedis:
		req.Cmd = append([]string{"redis-server"}, c.spec.args("")...)
	case kindEtcd:
		req.Cmd = append([]string{"/usr/local/bin/etcd"}, c.spec.args("")...)
	case kindZooKeeper:
		// Images of ZooKeeper start it by themselves and read /conf/zoo.cfg.
	}
	if c.spec.files != nil {
		for name, text := range c.spec.files("") {
			req.Files = append(req.Files, testcontainers.ContainerFile{
				Reader:            strings.NewReader(text),
				ContainerFilePath: path.Join("/", name),
				FileMode:          0o644,
			})
		}
	}
	made, err := c.c.lib.CreateContainer(ctx, req)
	if made != nil {
		c.id = made.GetContainerID()
	}
	if err != nil {
		return err
	}
	return made.Start(ctx)
}

func (c *ctr) pause(ctx context.Context) error {
	_, err := c.c.docker.ContainerPause(ctx, c.id, client.ContainerPauseOptions{})
	return err
}

func (c *ctr) resume(ctx context.Context) error {
	_, err := c.c.docker.ContainerUnpause(ctx, c.id, client.ContainerUnpauseOptions{})
	return err
}

func (c *ctr) kill(ctx context.Context) error {
	if c.exited(ctx) {
		return nil
	}
	wait := c.c.docker.ContainerWait(ctx, c.id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	if _, err := c.c.docker.ContainerKill(ctx, c.id, client.ContainerKillOptions{Signal: "SIGKILL"}); err != nil && !c.exited(ctx) {
		return err
	}
	select {
	case <-wait.Result:
		return nil
	case err := <-wait.Error:
		return err
	}
}

func (c *ctr) wipe(ctx context.Context) error { return c.remove(ctx) }

func (c *ctr) remove(ctx context.Context) error {
	if c.id == "" {
		return nil
	}
	_, err := c.c.docker.ContainerRemove(ctx, c.id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err == nil {
		c.id = ""
	}
	return err
}

func (c *ctr) exited(ctx context.Context) bool {
	if c.id == "" {
		return true
	}
	got, err := c.c.docker.ContainerInspect(ctx, c.id, client.ContainerInspectOptions{})
	return err == nil && got.Container.State != nil && !got.Container.State.Running
}

func (c *ctr) logs(ctx context.Context) string {
	if c.id == "" {
		return ""
	}
	out, err := c.c.docker.ContainerLogs(ctx, c.id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: "20"})
	if err != nil {
		return err.Error()
	}
	defer out.Close()
	text, err := io.ReadAll(out)
	if err != nil {
		return err.Error()
	}
	// Each piece of a log has an 8-byte head that says which stream it is from.
	var lines strings.Builder
	for len(text) > 8 {
		n := min(int(text[4])<<24|int(text[5])<<16|int(text[6])<<8|int(text[7]), len(text)-8)
		lines.Write(text[8 : 8+n])
		text = text[8+n:]
	}
	return tail(lines.String())
}
