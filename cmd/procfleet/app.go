package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/dispatcher/apps"
)

// appFlags are the flags common to the app commands.
type appFlags struct{ file string }

func newApp() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "app",
		Short:   "Manage the applications that may call the API",
		Long:    `Manage the applications file. Dispatchers and up read the file of --apps again within two seconds after a change.`,
		Example: "  procfleet app add shop --apps apps.yaml\n  procfleet app list --apps apps.yaml",
	}
	var f appFlags
	cmd.PersistentFlags().StringVar(&f.file, "apps", "", "applications file, YAML; created if missing")
	cmd.AddCommand(newAppAdd(&f), newAppList(&f), newAppRemove(&f))
	for _, sub := range cmd.Commands() {
		sub.PreRunE = f.check
	}
	return cmd
}

func (f *appFlags) check(*cobra.Command, []string) error {
	if f.file == "" {
		return command.Usagef("name the file with --apps or PROCFLEET_APPS, for example --apps apps.yaml")
	}
	return nil
}

// appAddFlags are the flags of `app add`.
type appAddFlags struct {
	secret, secretFile  string
	signingKey          string
	businesses, actions []string
	skipUserAuth, signs bool
}

func newAppAdd(shared *appFlags) *cobra.Command {
	var f appAddFlags
	cmd := &cobra.Command{
		Use:   "add CODE",
		Short: "Add or replace an application",
		Long: `Add the application CODE, or replace it. Without --secret or --secret-file the command generates a secret and
prints it once; the file stores only its hash.

Actions are ` + strings.Join(apps.Actions(), ", ") + `.
All queries, including results of tasks, require the action status.

Calls without a business, such as all calls of the GSE dialect, and calls for sets of businesses require --biz '*'.`,
		Example: `  procfleet app add shop --apps apps.yaml
  procfleet app add shop --biz 2,3 --actions start,stop,status --apps apps.yaml
  procfleet app add nodeman --secret-file nodeman.secret --skip-user-auth --apps apps.yaml`,
		Args: exactly("CODE of an application"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, shared.file, args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.secret, "secret", "", "secret of the application; safer as PROCFLEET_SECRET or --secret-file")
	flags.StringVar(&f.secretFile, "secret-file", "", "file with the secret on its first line; - for standard input")
	flags.StringSliceVar(&f.businesses, "biz", []string{apps.Everything}, "permitted business ids; * for all and for calls without business")
	flags.StringSliceVar(&f.actions, "actions", []string{apps.Everything}, "permitted actions; * for all")
	flags.BoolVar(&f.skipUserAuth, "skip-user-auth", false, "trust in bk_username without a bk_token")
	flags.BoolVar(&f.signs, "signing", false, "generation of a bk_signature key, printed after the secret")
	flags.StringVar(&f.signingKey, "signing-key", "", "existing bk_signature key; safer as PROCFLEET_SIGNING_KEY")
	return cmd
}

func (f *appAddFlags) run(cmd *cobra.Command, path, code string) error {
	a := apps.Application{Code: code, SkipUserAuth: f.skipUserAuth, SigningKey: f.signingKey}
	secret, err := f.choose(cmd.InOrStdin())
	if err != nil {
		return err
	}
	if a.SigningKey == "" && f.signs {
		a.SigningKey = apps.NewSecret()
	}
	if err := f.check(&a, secret); err != nil {
		return err
	}
	a.Secret = apps.Hash(secret)
	done := "added"
	err = apps.Update(path, func(file *apps.File) error {
		if file.Put(a) {
			done = "replaced"
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("--apps: %w", err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s application %s in %s\n", done, code, path)
	f.printSecrets(cmd, &a, secret)
	return nil
}

// choose returns the secret that the user supplied, or a new one.
func (f *appAddFlags) choose(stdin io.Reader) (secret string, err error) {
	switch {
	case f.secret != "" && f.secretFile != "":
		return "", command.Usagef("--secret and --secret-file exclude each other")
	case f.secret != "":
		return f.secret, nil
	case f.secretFile == "":
		return apps.NewSecret(), nil
	}
	in, err := openInput(stdin, f.secretFile)
	if err != nil {
		return "", command.Usagef("--secret-file: %w", err)
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, 4<<10)) // limit above the length of any secret
	if err != nil {
		return "", command.Usagef("--secret-file: %w", err)
	}
	secret, _, _ = strings.Cut(string(text), "\n")
	secret = strings.TrimSuffix(secret, "\r")
	if err := apps.CheckSecret(secret); err != nil {
		return "", command.Usagef("--secret-file: %w", err)
	}
	return secret, nil
}

// check validates the flags and sets the businesses and actions of a.
func (f *appAddFlags) check(a *apps.Application, secret string) (err error) {
	if err = apps.CheckCode(a.Code); err != nil {
		return command.Usagef("%w", err)
	}
	if err = apps.CheckSecret(secret); err != nil {
		return command.Usagef("--secret: %w", err)
	}
	if a.SigningKey != "" {
		if err = apps.CheckSecret(a.SigningKey); err != nil {
			return command.Usagef("--signing-key: %w", err)
		}
	}
	if a.Businesses, err = apps.ParseBusinesses(trimmed(f.businesses)); err != nil {
		return command.Usagef("--biz: %w", err)
	}
	if a.Actions, err = apps.ParseActions(trimmed(f.actions)); err != nil {
		return command.Usagef("--actions: %w", err)
	}
	return nil
}

// printSecrets writes generated secrets to standard output, one per line, and their
// descriptions to standard error.
func (f *appAddFlags) printSecrets(cmd *cobra.Command, a *apps.Application, secret string) {
	out, note := cmd.OutOrStdout(), cmd.ErrOrStderr()
	if f.secret == "" && f.secretFile == "" {
		fmt.Fprintf(note, "secret, shown only now; the token is %s.<secret>:\n", a.Code)
		fmt.Fprintln(out, secret)
	}
	if f.signs && f.signingKey == "" {
		fmt.Fprintln(note, "key for bk_signature, shown only now:")
		fmt.Fprintln(out, a.SigningKey)
	}
	if !a.Actions.Allows(apps.Reading) {
		fmt.Fprintln(note, "without the action status the application cannot read the results of its tasks")
	}
}

func trimmed(words []string) []string {
	out := make([]string, len(words))
	for i, word := range words {
		out[i] = strings.TrimSpace(word)
	}
	return out
}

func newAppList(shared *appFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List applications and their rights",
		Example: "  procfleet app list --apps apps.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			file, err := apps.Read(shared.file)
			if err != nil {
				return fmt.Errorf("--apps: %w", err)
			}
			return writeApps(cmd.OutOrStdout(), file.Applications())
		},
	}
}

func writeApps(out io.Writer, list []apps.Application) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, "no applications; add one with: procfleet app add")
		return err
	}
	table := newTable(out)
	fmt.Fprintln(table, "CODE\tBUSINESSES\tACTIONS\tSKIPS USER AUTH\tSIGNS")
	for i := range list {
		a := &list[i]
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", a.Code, a.Businesses, a.Actions, yesOrNo(a.SkipUserAuth), yesOrNo(a.SigningKey != ""))
	}
	return table.Flush()
}

func newAppRemove(shared *appFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "remove CODE",
		Short:   "Remove an application",
		Example: "  procfleet app remove shop --apps apps.yaml",
		Args:    exactly("CODE of an application"),
		RunE: func(_ *cobra.Command, args []string) error {
			err := apps.Update(shared.file, func(file *apps.File) error {
				if !file.Remove(args[0]) {
					return fmt.Errorf("application %.70q does not exist in %s", args[0], shared.file)
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("--apps: %w", err)
			}
			return nil
		},
	}
}
