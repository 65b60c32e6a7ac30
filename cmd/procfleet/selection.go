package main

import (
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// selectionFlags select catalog processes of a business.
type selectionFlags struct {
	name          string
	ids           []int64
	sets, modules []string
	businessFlags
}

// selecting lists the names of the selection flags.
var selecting = []string{"process", "process-id", "set", "module"}

func (f *selectionFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.name, "process", "", "name or glob pattern of catalog processes of --biz")
	flags.Int64SliceVar(&f.ids, "process-id", nil, "id of a catalog process of --biz; repeatable")
	f.registerPlaces(flags)
}

// registerPlaces adds the flags of the business and of its modules.
func (f *selectionFlags) registerPlaces(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.sets, "set", nil, "set whose hosts are selected; repeatable")
	flags.StringArrayVar(&f.modules, "module", nil, "module name whose hosts are selected; repeatable")
	flags.Int64Var(&f.of.ID, "biz", 0, "business id of the task (required with --process and --process-id)")
	flags.StringVar(&f.of.Account, "account", "", "supplier account of the business (default 0)")
}

// given reports whether any of the selection flags is set.
func (f *selectionFlags) given(cmd *cobra.Command) bool {
	for _, name := range selecting {
		if cmd.Flags().Changed(name) {
			return true
		}
	}
	return false
}

func (f *selectionFlags) selection() (*procfleet.Selection, error) {
	if (f.name == "") == (len(f.ids) == 0) {
		return nil, command.Usagef("give either --process NAME or --process-id ID")
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	return &procfleet.Selection{Processes: f.ids, Name: f.name, Sets: f.sets, Modules: f.modules}, nil
}

// business returns the id of the business in the format of the API, or "" if not set.
func (f *selectionFlags) business() (string, error) {
	switch {
	case f.of.ID == 0 && f.of.Account == "":
		return "", nil
	case f.of.ID < 1:
		return "", f.check()
	case f.of.Account == "" || f.of.Account == "0":
		return strconv.FormatInt(f.of.ID, 10), nil
	}
	return f.of.Account + "." + strconv.FormatInt(f.of.ID, 10), nil
}

type businessFlags struct{ of client.Business }

// require adds the flags to commands that require a business.
func (f *businessFlags) require(cmds ...*cobra.Command) {
	for _, cmd := range cmds {
		cmd.Flags().Int64Var(&f.of.ID, "biz", 0, "business id (required)")
		cmd.Flags().StringVar(&f.of.Account, "account", "", "supplier account of the business (default 0)")
		cmd.PreRunE = func(*cobra.Command, []string) error { return f.check() }
	}
}

func (f *businessFlags) check() error {
	if f.of.ID < 1 {
		return command.Usagef("name the business with --biz, for example --biz 2")
	}
	return nil
}
