package procop

import (
	"strings"
	"testing"

	"github.com/procfleet/procfleet/agentproto"
)

func TestMessagesFitAndAreValid(t *testing.T) {
	t.Parallel()
	v := commandFailed("command failed", "exit=1", "output tail: "+strings.Repeat("ü", 3_000)+"\xff")
	text := v.Text("start")
	if len(text) > agentproto.MaxMessage || !strings.HasPrefix(text, "start: command failed; exit=1; output tail: ü") {
		t.Errorf("message of %d bytes: %.60q", len(text), text)
	}
	if strings.ToValidUTF8(text, "") != text {
		t.Error("message is not valid UTF-8")
	}
}
