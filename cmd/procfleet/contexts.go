package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/internal/datafile"
)

// contexts are the servers that a user has named, as in the file of contextFile.
type contexts struct {
	Current  string                    `json:"current,omitempty"`
	Contexts map[string]*serverContext `json:"contexts,omitempty"`
}

// serverContext is one way to call a server. Flags, their environment variables and the
// settings file have precedence over it.
type serverContext struct {
	Server    string `json:"server"`
	TokenFile string `json:"token_file,omitempty"` // file with <code>.<secret> on its first line
	CA        string `json:"server_ca,omitempty"`
	Cert      string `json:"server_cert,omitempty"`
	Key       string `json:"server_key,omitempty"`
	Business  int64  `json:"business,omitempty"` // default of --biz; 0 = none
}

// contextFile returns the path of the contexts of the user who runs the command.
func contextFile() (string, error) {
	if path := os.Getenv("PROCFLEET_CONTEXTS"); path != "" {
		return path, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("directory of the contexts: %w; set PROCFLEET_CONTEXTS to a file", err)
	}
	return filepath.Join(dir, "procfleet", "contexts.yaml"), nil
}

const maxContextFile = 1 << 20 // bytes

func readContexts() (*contexts, error) {
	path, err := contextFile()
	if err != nil {
		return nil, err
	}
	text, err := datafile.Read(path, maxContextFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("contexts: %w", err)
	}
	return parseContexts(path, text)
}

func parseContexts(path string, text []byte) (*contexts, error) {
	all := &contexts{}
	if err := yaml.UnmarshalStrict(text, all); err != nil {
		return nil, fmt.Errorf("contexts in %s: %w", path, err)
	}
	for name, c := range all.Contexts {
		if c == nil || c.Server == "" {
			return nil, fmt.Errorf("contexts in %s: context %q has no server", path, name)
		}
	}
	return all, nil
}

// find returns a context by name; the current one for "". It returns nil if there is no
// current one.
func (all *contexts) find(name string) (*serverContext, error) {
	if name == "" && all.Current == "" {
		return nil, nil //nolint:nilnil // there is no current context
	}
	name = cmp.Or(name, all.Current)
	c := all.Contexts[name]
	if c == nil {
		return nil, command.Usagef("there is no context %.70q: use one of %s, or add it with: procfleet context add", name,
			cmp.Or(strings.Join(slices.Sorted(maps.Keys(all.Contexts)), ", "), "none"))
	}
	return c, nil
}

// useContext sets the flags that neither the command line nor the environment nor the
// settings file has set, from the context.
func (s *serverFlags) useContext() error {
	if s.flags == nil || s.context != nil || s.flags.Changed("server") && s.contextName == "" {
		return nil
	}
	all, err := readContexts()
	if err != nil {
		return err
	}
	c, err := all.find(s.contextName)
	if err != nil || c == nil {
		return err
	}
	s.context = c
	for _, setting := range []struct {
		flag, from string
		to         *string
	}{{"server", c.Server, &s.url}, {"server-ca", c.CA, &s.tls.CA}, {"server-cert", c.Cert, &s.tls.Cert}, {"server-key", c.Key, &s.tls.Key}} {
		if !s.flags.Changed(setting.flag) {
			*setting.to = setting.from
		}
	}
	if !s.flags.Changed("token") && c.TokenFile != "" {
		text, err := datafile.Read(c.TokenFile, 4<<10)
		if err != nil {
			return fmt.Errorf("token of the context: %w", err)
		}
		line, _, _ := bytes.Cut(text, []byte("\n"))
		s.token = string(bytes.TrimSpace(line))
	}
	return nil
}

func newContext() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "context",
		Short: "Manage named servers, so that commands need no --server and --token",
		Long: `Manage contexts: named servers with their tokens, certificates and a business. Commands call the server of the current
context, or of --context. Flags, environment variables and the settings file have precedence over a context. Contexts are
stored in procfleet/contexts.yaml in the user's configuration directory, or in the file PROCFLEET_CONTEXTS.`,
		Example: `  procfleet context add prod --server https://procfleet.example:8443 --token-file ~/.procfleet-token --biz 2
  procfleet context use prod`,
	}
	cmd.AddCommand(newContextAdd(), newContextUse(), newContextList(), newContextRemove())
	return cmd
}

var contextName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

func newContextAdd() *cobra.Command {
	var c serverContext
	cmd := &cobra.Command{
		Use:     "add NAME",
		Short:   "Add or replace a context; the first one becomes the current one",
		Example: "  procfleet context add prod --server https://procfleet.example:8443 --token-file token --server-ca ca.pem",
		Args:    exactly("NAME of a context"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !contextName.MatchString(args[0]) {
				return command.Usagef("NAME of a context: 1 to 64 letters, digits, '.', '_' and '-'")
			}
			for _, path := range []*string{&c.TokenFile, &c.CA, &c.Cert, &c.Key} {
				if err := absolute(path); err != nil {
					return err
				}
			}
			return changeContexts(cmd, "added "+args[0], func(all *contexts) error {
				if all.Contexts == nil {
					all.Contexts = map[string]*serverContext{}
				}
				all.Contexts[args[0]] = &c
				all.Current = cmp.Or(all.Current, args[0])
				return nil
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&c.Server, "server", defaultServer, "dispatcher URLs, comma-separated, or unix:PATH")
	flags.StringVar(&c.TokenFile, "token-file", "", "file with the token <code>.<secret> on its first line")
	flags.StringVar(&c.CA, "server-ca", "", "PEM certificate authorities for the dispatcher, in place of the system's")
	flags.StringVar(&c.Cert, "server-cert", "", "PEM client certificate presented to the dispatcher")
	flags.StringVar(&c.Key, "server-key", "", "PEM private key of --server-cert")
	flags.Int64Var(&c.Business, "biz", 0, "business id, default of --biz of later commands")
	return cmd
}

// absolute makes the path of an existing file absolute; "" remains.
func absolute(path *string) error {
	if *path == "" {
		return nil
	}
	if _, err := os.Stat(*path); err != nil {
		return command.Usagef("%w", err)
	}
	var err error
	*path, err = filepath.Abs(*path)
	return err
}

func changeContexts(cmd *cobra.Command, done string, change func(*contexts) error) error {
	path, err := contextFile()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err != nil {
		return err
	}
	err = datafile.Update(path, maxContextFile, func(text []byte) ([]byte, error) {
		all, err := parseContexts(path, text)
		if err != nil {
			return nil, err
		}
		if err := change(all); err != nil {
			return nil, err
		}
		return yaml.Marshal(all)
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), done)
	return nil
}

func newContextUse() *cobra.Command {
	return &cobra.Command{
		Use: "use NAME", Short: "Make a context the current one", Example: "  procfleet context use prod",
		Args: exactly("NAME of a context"), ValidArgsFunction: completeContexts,
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeContexts(cmd, "using "+args[0], func(all *contexts) error {
				all.Current = args[0]
				_, err := all.find(args[0])
				return err
			})
		},
	}
}

func newContextRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "Remove a context", Example: "  procfleet context remove prod",
		Args: exactly("NAME of a context"), ValidArgsFunction: completeContexts,
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeContexts(cmd, "removed "+args[0], func(all *contexts) error {
				if _, err := all.find(args[0]); err != nil {
					return err
				}
				delete(all.Contexts, args[0])
				if all.Current == args[0] {
					all.Current = ""
				}
				return nil
			})
		},
	}
}

func newContextList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List contexts; * is the current one", Example: "  procfleet context list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := readContexts()
			if err != nil {
				return err
			}
			return all.list(cmd.OutOrStdout())
		},
	}
}

func (all *contexts) list(out io.Writer) error {
	t := table{header: []string{"CURRENT", "NAME", "SERVER", "TOKEN FILE", "BUSINESS"}, empty: "no contexts; add one with: procfleet context add"}
	for _, name := range slices.Sorted(maps.Keys(all.Contexts)) {
		c, current, business := all.Contexts[name], "", ""
		if name == all.Current {
			current = "*"
		}
		if c.Business != 0 {
			business = fmt.Sprint(c.Business)
		}
		t.add(name, current, name, c.Server, c.TokenFile, business)
	}
	return t.write(out, len(t.header))
}
