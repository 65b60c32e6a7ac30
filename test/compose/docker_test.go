//go:build compose

package compose

import (
	"testing"

	"github.com/procfleet/procfleet/test/internal/images"
)

func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := images.Docker(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
