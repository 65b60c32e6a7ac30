//go:build cluster && linux

// Package cluster runs a whole procfleet in containers, breaks it while
// operations run all the time, and has a checker find out what that did to
// them. It needs docker and root, so it only runs with the build tag:
// make cluster-test.
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
