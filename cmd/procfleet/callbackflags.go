package main

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
	"github.com/procfleet/procfleet/worker"
)

// callbackFlags are the flags for callbacks.
type callbackFlags struct {
	tls   tlsflags.Client
	allow string
}

func (f *callbackFlags) register(flags *pflag.FlagSet) {
	f.tls.RegisterForMany(flags, "callback", "who is called back")
	flags.StringVar(&f.allow, "callback-allow", "", "networks, addresses or host names, separated by commas, that callbacks may reach although they are local: loopback, link-local, cloud metadata")
}

func (f *callbackFlags) check(s *settings.Settings) {
	f.tls.Check(s)
	if _, err := worker.ParseReceivers(f.entries()); err != nil {
		s.Wrong("callback-allow", "%s", err)
	}
}

// receivers returns what the flags allow; check reports what is wrong with them.
func (f *callbackFlags) receivers() worker.Receivers {
	receivers, _ := worker.ParseReceivers(f.entries())
	return receivers
}

func (f *callbackFlags) entries() []string {
	return strings.FieldsFunc(f.allow, func(r rune) bool { return r == ',' || r == ' ' })
}
