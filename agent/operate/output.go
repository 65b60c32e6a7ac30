package operate

import (
	"github.com/procfleet/procfleet/agent/operate/procop"
	"github.com/procfleet/procfleet/agentproto"
)

// OutputPage is a part of the output of a process.
type OutputPage = procop.OutputPage

// Output returns a part of the output of the process of a key and of its start command: after an
// offset of a file, or without a file the last lines. The page is empty if nothing is known.
func (e *Engine) Output(key, file string, offset int64, lines int) (OutputPage, error) {
	return e.host.Outputs.Read(key, file, offset, lines, agentproto.MaxOutputPage)
}
