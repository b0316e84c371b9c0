//go:build linux

package integration_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-go/leasehold/client"
	"github.com/leasehold-go/leasehold/internal/redistest"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/redis/rueidis"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
	ready "github.com/testcontainers/testcontainers-go/wait"
)

// The server is not a child of the test, but process 1 of its own container, and its port is mapped.
//
// The test is skipped without a container engine or the image, but fails if LEASEHOLD_REQUIRE_CONTAINERS is
// 1.
func TestContainer(t *testing.T) {
	connect, err := inContainer(t)
	if err != nil {
		if os.Getenv("LEASEHOLD_REQUIRE_CONTAINERS") == "1" {
			t.Fatalf("this test must not be skipped here (LEASEHOLD_REQUIRE_CONTAINERS is set): %v", err)
		}
		t.Skipf("NOT TESTED: %v; make containers installs what is needed", err)
	}
	conformance(t, connect)
}

// inContainer starts a server in a container, which is removed when t ends. The image is
// $LEASEHOLD_REDIS_IMAGE, or one that the engine has to download.
func inContainer(t *testing.T) (connector, error) {
	t.Helper()
	image := os.Getenv("LEASEHOLD_REDIS_IMAGE")
	if image == "" {
		image = "redis:8"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // an image may have to be downloaded
	defer cancel()
	addr, err := startContainer(ctx, t, image)
	if err != nil {
		return nil, fmt.Errorf("start %s in a container: %w", image, err)
	}
	return connectTo(t, "redis://"+addr), nil
}

// startContainer returns the address of the server in the container.
func startContainer(ctx context.Context, t *testing.T, image string) (addr string, err error) {
	t.Helper()
	const port = "6379/tcp"
	// A server without a password must only be reachable from this machine. A user whose engine runs
	// elsewhere must specify how to reach it.
	host, bind := "127.0.0.1", netip.MustParseAddr("127.0.0.1")
	if other := os.Getenv("TESTCONTAINERS_HOST_OVERRIDE"); other != "" {
		host, bind = other, netip.IPv4Unspecified()
	}
	provider, err := testcontainers.NewDockerProvider(testcontainers.WithLogger(log.TestLogger(t)))
	if err != nil {
		return "", fmt.Errorf("no container engine: %w", err)
	}
	t.Cleanup(func() { provider.Close() })
	c, err := provider.RunContainer(ctx, testcontainers.ContainerRequest{
		Image:        image,
		Cmd:          []string{"redis-server", "--save", "", "--protected-mode", "no"},
		ExposedPorts: []string{port},
		HostConfigModifier: func(h *container.HostConfig) {
			h.PortBindings = network.PortMap{network.MustParsePort(port): {{HostIP: bind}}}
		},
		WaitingFor: ready.ForLog("Ready to accept connections"),
	})
	testcontainers.CleanupContainer(t, c)
	if err != nil {
		return "", err
	}
	mapped, err := c.MappedPort(ctx, port)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(host, mapped.Port()), nil
}

// connectTo connects to any URL that client.Open accepts.
func connectTo(t *testing.T, url string) connector {
	t.Helper()
	option, err := client.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	return func(tb testing.TB) rueidis.Client {
		tb.Helper()
		rdb, err := rueidis.NewClient(option)
		if err != nil {
			tb.Fatalf("connect to %s: %v", option.InitAddress, err)
		}
		tb.Cleanup(rdb.Close)
		return rdb
	}
}

// The image contains the tool and the CA certificates, and runs without root.
func TestContainer_tool(t *testing.T) {
	docker := func(args ...string) (string, error) {
		out, err := exec.Command("docker", args...).CombinedOutput()
		return string(out), err
	}
	if out, err := docker("version"); err != nil {
		if os.Getenv("LEASEHOLD_REQUIRE_CONTAINERS") == "1" {
			t.Fatalf("this test must not be skipped here (LEASEHOLD_REQUIRE_CONTAINERS is set): %v\n%s", err, out)
		}
		t.Skipf("NOT TESTED: no container engine: %v", err)
	}
	const image = "leasehold-tool:test"
	if out, err := exec.Command("sh", "../scripts/image.sh", image).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := redistest.Start(t)
	h, err := ours(t, s.Client(t)).NewLock("in a container").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer h.Unlock(context.WithoutCancel(t.Context()))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"version"}, "linux/"},
		{[]string{"ls", "-u", s.URL()}, "in a container"},
		{[]string{"ls", "-u", "rediss://" + s.Addr()}, "TLS"}, // the server has no TLS, but the certificates are only needed for it
	} {
		if out, err := docker(append([]string{"run", "--rm", "--network", "host", image}, c.args...)...); !strings.Contains(out, c.want) {
			t.Errorf("%q: %v\n%s", c.args, err, out)
		}
	}
	if out, err := docker("image", "inspect", "--format", "{{.Config.User}} {{.Config.Entrypoint}}", image); strings.TrimSpace(out) != "65534:65534 [/leasehold]" {
		t.Errorf("%q, %v", out, err)
	}
}
