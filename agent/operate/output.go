package operate

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agent/operate/procspec"
	"github.com/procfleet/procfleet/agentproto"
)

// OutputQuery selects a part of the output of a process.
type OutputQuery = procop.OutputQuery

// OutputPage is a part of the output of a process.
type OutputPage = procop.OutputPage

// Output returns a part of the output of a process and of its start command, or of its log
// file. The page is empty if nothing is known.
func (e *Engine) Output(q OutputQuery) (OutputPage, error) {
	if !q.Log {
		return e.host.Outputs.Read(q, agentproto.MaxOutputPage)
	}
	file, err := e.openLog(q.Key)
	if err != nil {
		return OutputPage{Problem: err.Error()}, nil
	}
	defer file.Close()
	return procop.ReadLog(file, q, agentproto.MaxOutputPage)
}

// openLog opens the log file of a process as the account of the process.
func (e *Engine) openLog(key string) (*os.File, error) {
	spec := e.snapshotOf(key).spec
	switch {
	case spec.LogPath == "":
		return nil, fmt.Errorf("the spec of %s has no log_path", key)
	case !filepath.IsAbs(spec.LogPath):
		return nil, fmt.Errorf("log_path %q is not absolute", spec.LogPath)
	}
	file, err := e.host.Runner.OpenAs(e.life, procspec.Account(&spec), spec.LogPath)
	if err != nil {
		return nil, fmt.Errorf("log_path: %w", err)
	}
	return file, nil
}
