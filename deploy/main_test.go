package deploy_test

import (
	"os"
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testenv.CleanUp()
	os.Exit(code)
}
