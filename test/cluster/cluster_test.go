//go:build cluster && linux

package cluster

import (
	"fmt"
	"os"
	"testing"

	"github.com/procfleet/procfleet/test/cluster/fleet"
	"github.com/procfleet/procfleet/test/internal/images"
)

func buildImages(t *testing.T) fleet.Images {
	t.Helper()
	images.Require(t, "docker")
	tag := fmt.Sprintf(":cluster-test-%d", os.Getpid())
	made := fleet.Images{NATS: "procfleet-test-nats" + tag, Redis: "procfleet-test-redis" + tag}
	made.Server, made.Agent = images.Procfleet(t, tag, "id", "sleep", "cat", "cp", "mkdir")
	images.NATS(t, made.NATS)
	images.Redis(t, made.Redis)
	return made
}

func TestCluster(t *testing.T) {
	f := fleet.Start(t, fleet.Config{Images: buildImages(t), WaitReplicas: 1})
	t.Log(f.Dispatchers())
}
