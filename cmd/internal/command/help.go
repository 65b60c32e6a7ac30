package command

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/settings"
)

// flagGroups are the headings in the help of a command, in display order, with their
// flags. Certificate flags are not listed here; see [isTLS].
var flagGroups = []struct{ title, flags string }{
	{"Target", "account area biz creds host hosts-file module name namespace process process-id registered selector set user"},
	{"Input", "file rights"},
	{"Filter", "app application conflict drifted event kind missing restarted since state task"},
	{"Connection", "callback-allow context http http-connections listen login-url nats nats-creds nats-listen redis redis-password-file server token webhook-allow"},
	{"Identity and access", "actions agent-id allow-local-users allow-unauthenticated apps cloud fleet-key identity ip label nats-auth rotate-secret secret secret-file " +
		"signing signing-key skip-user-auth trusted-esb valid"},
	{tlsGroup, ""},
	{"Components", "agent demo no-console procfleet secure submissions supervisord"},
	{"Storage", "audit-log audit-required audit-stream broker-conf create data out passwords pid-file redis-wait-replicas redis-wait-timeout " +
		"retention stream-replicas"},
	{"Rollout", "approve bake check-health coalesce hold max-concurrency max-failures on-failure order progress-deadline queue-for ramp rollout shuffle speed stage zone-concurrency zones zones-at-once"},
	{"Behavior", "auto-register dry-run for force gone idempotency-key interrupt keep override-windows paused plan reason replaces start timeout wait yes"},
	{"Workload", "action agents area areas beside connections every hosts in-flight items kills latency operations processes report-every runs " +
		"samples tasks up-processes windows workers"},
	{"Limits", "big-chunks drain max-body max-items max-items-in-hand slack small-chunks"},
	{"Telemetry", "log-format log-level otlp pprof status-http trace-ratio"},
	{"Output", "cursor follow format json limit output tail watch"},
	{generalGroup, "check-config config help help-all version"},
}

const (
	tlsGroup     = "TLS"
	generalGroup = "General"
)

// commonFlags is the key of the annotation that lists the flags in the short help of a
// command with --help-all.
const commonFlags = "common flags"

// ExitCodes is the key of the root command's annotation that lists its exit codes, for the
// help of all commands except the roles.
const ExitCodes = "exit codes"

// Common returns annotations that limit --help of a role to the given flags, separated
// by spaces, and those of the group General; --help-all shows all flags.
func Common(flags string) map[string]string { return map[string]string{commonFlags: flags} }

// help writes the help of a command. cobra's own help would link text/template, which
// adds 10 MiB to a binary.
func help(cmd *cobra.Command, _ []string) {
	out := cmd.OutOrStdout()
	fmt.Fprintf(out, "%s\n\nUsage:\n  %s\n", cmp.Or(cmd.Long, cmd.Short), cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(out, "\nExamples:\n%s\n", cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintln(out, "\nCommands:")
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(out, "  %-*s  %s\n", sub.NamePadding(), sub.Name(), sub.Short)
			}
		}
	}
	cmd.InheritedFlags() // has a side effect: adds the parents' flags to cmd.Flags
	writeFlags(out, shownFlags(cmd))
	isRole := cmd.Flags().Lookup(settings.HelpAllFlag) != nil
	if codes := cmd.Root().Annotations[ExitCodes]; codes != "" && !isRole {
		fmt.Fprintf(out, "\nExit codes: %s.\n", codes)
	}
	fmt.Fprintf(out, "\nEvery flag is also an environment variable (--log-level: %s) and a key of the --config file.\n", settings.Variable("log-level"))
}

func shownFlags(cmd *cobra.Command) *pflag.FlagSet {
	helpAll := cmd.Flags().Lookup(settings.HelpAllFlag)
	all := helpAll == nil || helpAll.Changed
	common := strings.Fields(cmd.Annotations[commonFlags])
	shown := pflag.NewFlagSet("", pflag.ContinueOnError)
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if all || slices.Contains(common, f.Name) || groupOf(cmd.Flags(), f.Name) == generalGroup {
			shown.AddFlag(f)
		}
	})
	return shown
}

// writeFlags writes the flags under the headings of their groups, in aligned
// columns.
func writeFlags(out io.Writer, flags *pflag.FlagSet) {
	lines := strings.SplitAfter(flags.FlagUsages(), "\n")
	grouped := make(map[string][]string)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		group := groupOf(flags, f.Name)
		grouped[group] = append(grouped[group], lines[0])
		lines = lines[1:]
	})
	for _, group := range flagGroups {
		if len(grouped[group.title]) > 0 {
			fmt.Fprintf(out, "\n%s:\n%s", group.title, strings.Join(grouped[group.title], ""))
		}
	}
}

// groupOf returns the group title of a flag, or "" for a flag without group.
func groupOf(flags *pflag.FlagSet, name string) string {
	if isTLS(flags, name) {
		return tlsGroup
	}
	for _, group := range flagGroups {
		if slices.Contains(strings.Fields(group.flags), name) {
			return group.title
		}
	}
	return ""
}

// isTLS reports whether a flag names a certificate or key file: one of the flags --X-ca
// or --X-client-ca, --X-cert and --X-key for an address flag --X.
func isTLS(flags *pflag.FlagSet, name string) bool {
	for _, suffix := range []string{"-client-ca", "-ca", "-cert", "-key"} {
		if of, found := strings.CutSuffix(name, suffix); found {
			return flags.Lookup(of+"-cert") != nil
		}
	}
	return false
}
