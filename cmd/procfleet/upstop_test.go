package main

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/sirupsen/logrus/hooks/test"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/internal/telemetry/metrics"
)

func TestUpThatIsStoppedWhileItPutsItsPartsTogetherEndsWell(t *testing.T) {
	t.Parallel()
	var f upFlags
	f.register(pflag.NewFlagSet("up", pflag.ContinueOnError))
	f.data, f.agent = t.TempDir(), false
	log, _ := test.NewNullLogger()
	registry, err := metrics.New()
	if err != nil {
		t.Fatal(err)
	}
	p := &daemon.Process{Log: log, Metrics: registry}
	ctx, stop := context.WithCancelCause(t.Context())
	back, err := f.open(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	parts := &roleParts{backends: back, process: p}
	defer parts.close()
	stop(errors.New("received terminated"))
	if _, err = f.assemble(ctx, parts, nil, nil, io.Discard); unlessStopped(ctx, err) != nil {
		t.Errorf("it fails with %v", err)
	}
}
