package main

import (
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// businessFlags name the business whose processes and modules are meant.
type businessFlags struct{ of client.Business }

func (f *businessFlags) register(flags *pflag.FlagSet) {
	flags.Int64Var(&f.of.ID, "biz", 0, "id of the business (required)")
	flags.StringVar(&f.of.Account, "account", "", "account of the supplier whose business it is (default 0)")
}

func (f *businessFlags) check() error {
	if f.of.ID < 1 {
		return command.Usagef("name the business with --biz, for example --biz 2")
	}
	return nil
}
