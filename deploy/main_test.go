package deploy_test

import (
	"testing"

	"github.com/procfleet/procfleet/internal/testenv"
)

func TestMain(m *testing.M) {
	defer testenv.CleanUp()
	m.Run()
}
