package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet/client"
	"github.com/procfleet/procfleet/cmd/internal/command"
)

func newRollout() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "rollout",
		Short:   "Manage the rollout policies of a business",
		Example: "  procfleet rollout apply 2 -f policies.yaml\n  procfleet rollout show 2",
	}
	var f serverFlags
	f.register(cmd.PersistentFlags())
	cmd.AddCommand(newRolloutApply(&f), newRolloutShow(&f))
	return cmd
}

func newRolloutApply(f *serverFlags) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "apply BUSINESS",
		Short: "Replace the rollout policies of a business with a file",
		Long: `Replace the rollout policies of a business with a YAML or JSON file. The policies of BUSINESS, which may be the namespace of
processes, are selected by name with --rollout. The policy "default" is that of all tasks on more hosts than "required_above"
that have no policy, also from the GSE, Job and CMDB APIs. The file also has the maintenance windows, in "windows". Policies
and windows that are not in the file are removed.`,
		Example: `  procfleet rollout apply 2 -f policies.yaml`,
		Args:    exactly("BUSINESS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var policies client.RolloutPolicies
			if err := readDocument(cmd.InOrStdin(), file, &policies); err != nil {
				return err
			}
			c, err := f.submitter(cmd)
			if err != nil {
				return err
			}
			stored, err := c.SetRolloutPolicies(cmd.Context(), args[0], policies)
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), stored, func(out io.Writer) error { return writePolicies(out, &stored) })
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "file with the policies, YAML or JSON; - for standard input")
	return cmd
}

// readDocument reads a YAML or JSON file. It rejects unknown keys.
func readDocument(stdin io.Reader, path string, into any) error {
	if path == "" {
		return command.Usagef("-f is required: name the file, or - for standard input")
	}
	data, err := readInput(stdin, path)
	if err != nil {
		return command.Usagef("-f: %w", err)
	}
	raw, err := yaml.YAMLToJSONStrict(data)
	if err == nil && string(raw) == "null" {
		err = errors.New("the file is empty")
	}
	if err == nil {
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.DisallowUnknownFields()
		err = decoder.Decode(into)
	}
	if err != nil {
		return command.Usagef("-f %s: %w", path, wrongType(err))
	}
	return nil
}

func newRolloutShow(f *serverFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "show BUSINESS",
		Short:   "Show the rollout policies of a business",
		Long:    `Show the rollout policies of a business or a namespace of processes. The output is a file for procfleet rollout apply.`,
		Example: `  procfleet rollout show 2`,
		Args:    exactly("BUSINESS"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.client(cmd)
			if err != nil {
				return err
			}
			policies, err := c.RolloutPolicies(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return f.print(cmd.OutOrStdout(), policies, func(out io.Writer) error { return writePolicies(out, &policies) })
		},
	}
}

// writePolicies writes policies in the format that readDocument reads.
func writePolicies(out io.Writer, p *client.RolloutPolicies) error {
	text, err := yaml.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode the policies: %w", err)
	}
	_, err = out.Write(text)
	return err
}
