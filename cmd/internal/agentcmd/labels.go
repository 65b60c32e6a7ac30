package agentcmd

import (
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/label"
)

// Labels is the flag --label of an agent.
type Labels struct{ texts []string }

// Register adds the flag.
func (l *Labels) Register(flags *pflag.FlagSet) {
	flags.StringSliceVar(&l.texts, "label", nil, "label of this host as key=value; repeatable")
}

// Check reports invalid labels to s.
func (l *Labels) Check(s *settings.Settings) {
	if _, err := label.ParseOwn(l.texts); err != nil {
		s.Wrong("label", "%s", err)
	}
}

// Map returns the labels, which Check has accepted.
func (l *Labels) Map() map[string]string {
	labels, _ := label.ParseOwn(l.texts) // Check has reported invalid labels
	return labels
}
