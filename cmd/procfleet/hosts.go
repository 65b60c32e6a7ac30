package main

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

// hostFlags select hosts.
type hostFlags struct {
	names []string
	file  string
}

func (f *hostFlags) register(flags *pflag.FlagSet) {
	flags.StringSliceVar(&f.names, "host", nil, "host as <cloud area>:<ip>, for example 0:10.0.0.1; repeatable")
	flags.StringVar(&f.file, "hosts-file", "", "file with one host per line; - for standard input")
}

// all returns the distinct hosts of --host and --hosts-file, at least one. In the
// file, '#' begins a comment.
func (f *hostFlags) all(cmd *cobra.Command) ([]procfleet.Host, error) {
	hosts, err := f.any(cmd)
	if err == nil && len(hosts) == 0 {
		err = command.Usagef("no hosts: give --host 0:10.0.0.1 or --hosts-file FILE")
	}
	return hosts, err
}

// any is like all, but returns no hosts if neither flag is set.
func (f *hostFlags) any(cmd *cobra.Command) (hosts []procfleet.Host, err error) {
	seen := make(map[procfleet.Host]bool)
	add := func(host procfleet.Host) {
		if !seen[host] {
			seen[host] = true
			hosts = append(hosts, host)
		}
	}
	for _, name := range f.names {
		host, err := procfleet.ParseHost(name)
		if err != nil {
			return nil, command.Usagef("--host: %w", err)
		}
		add(host)
	}
	if f.file != "" {
		more, err := readHosts(cmd, f.file)
		if err != nil {
			return nil, command.Usagef("--hosts-file: %w", err)
		}
		if len(more) == 0 { // an empty file must not mean "on all hosts"
			return nil, command.Usagef("--hosts-file: %s names no host", f.file)
		}
		for _, host := range more {
			add(host)
		}
	}
	return hosts, nil
}

func readHosts(cmd *cobra.Command, path string) ([]procfleet.Host, error) {
	in, err := openInput(cmd.InOrStdin(), path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var hosts []procfleet.Host
	scanner := bufio.NewScanner(in)
	for number := 1; scanner.Scan(); number++ {
		line, _, _ := strings.Cut(scanner.Text(), "#")
		for name := range strings.FieldsSeq(line) {
			host, err := procfleet.ParseHost(name)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, number, err)
			}
			hosts = append(hosts, host)
		}
	}
	return hosts, scanner.Err()
}
