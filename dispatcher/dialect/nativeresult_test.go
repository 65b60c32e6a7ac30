package dialect

import (
	"strings"
	"testing"

	"github.com/procfleet/procfleet"
)

// A task is readable not only for the caller that created it, so responses must omit the secrets in
// its callback URL.
func TestACallbacksSecretsAreNotShown(t *testing.T) {
	t.Parallel()
	task := procfleet.Task{Callback: "https://ops:secret@shop.example/done?token=secret#secret"}
	for name, reply := range map[string]Reply{
		"one": nativeEvent(&task), "list": nativeTasks(nil, Tasks{Tasks: []procfleet.Task{task}}, ""),
	} {
		text, err := reply.JSON()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "secret") || !strings.Contains(string(text), `"callback":"https://shop.example/done"`) {
			t.Errorf("%s: %s", name, text)
		}
	}
}
