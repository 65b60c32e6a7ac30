package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/internal/datafile"
)

// maxPassword bounds a password's file in bytes.
const maxPassword = 4 << 10

// checkRedisPassword says what is wrong with --redis-password-file.
func checkRedisPassword(s *settings.Settings, file string) {
	if file == "" {
		return
	}
	if _, err := readPassword(file); err != nil {
		s.Wrong("redis-password-file", "%s", err)
	}
}

// redisPassword reads the password whenever it is asked for; nil without a
// file.
func redisPassword(file string) func() (string, error) {
	if file == "" {
		return nil
	}
	return func() (string, error) { return readPassword(file) }
}

func readPassword(file string) (string, error) {
	text, _, err := datafile.ReadPrivate(file, maxPassword)
	if err != nil {
		return "", err
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	if line = bytes.TrimSpace(line); len(line) == 0 {
		return "", fmt.Errorf("%s: its first line is empty, and should be the password", file)
	}
	return string(line), nil
}

// redisUsersFlags are the flags of `redis-users`.
type redisUsersFlags struct{ rights, passwords, out string }

func newRedisUsers() *cobra.Command {
	var f redisUsersFlags
	cmd := &cobra.Command{
		Use:   "redis-users",
		Short: "Give the users of Redis passwords",
		Long: `Give each user of a file of Redis's users a password, and write the file for Redis's aclfile. Passwords are
made once, in files like DIR/worker.password, for --redis-password-file; Redis's file has their hashes alone.
Users that are off, that need no password or that have one are left as they are.

To replace a password, remove its file and call it again; then, as the user operator, ACL LOAD.`,
		Example: `  procfleet redis-users --rights deploy/redis-users.acl --passwords fleet/redis --out users.acl`,
		Args:    command.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return f.run() },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.rights, "rights", "", "Redis ACL file with users and their rights")
	flags.StringVar(&f.passwords, "passwords", "", "directory of password files; missing passwords are generated")
	flags.StringVar(&f.out, "out", "", "output ACL file with password hashes")
	return cmd
}

func (f *redisUsersFlags) run() error {
	for _, needed := range [][2]string{{"rights", f.rights}, {"passwords", f.passwords}, {"out", f.out}} {
		if needed[1] == "" {
			return command.Usagef("--%s is missing", needed[0])
		}
	}
	rights, err := os.ReadFile(f.rights)
	if err != nil {
		return fmt.Errorf("--rights: %w", err)
	}
	if err := os.MkdirAll(f.passwords, 0o700); err != nil {
		return fmt.Errorf("--passwords: %w", err)
	}
	var acl strings.Builder
	for line := range strings.Lines(string(rights)) {
		line, err := f.withPassword(line)
		if err != nil {
			return fmt.Errorf("--passwords: %w", err)
		}
		acl.WriteString(line)
	}
	// Redis runs as somebody else. Of a random password of 256 bits a hash is no secret.
	if err := writeWhole(f.out, []byte(acl.String()), 0o644); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	return nil
}

// aclUser is a line of a user that may connect and who may not yet, for lack of
// a password: groups are all up to "on", the name, and the rest.
var aclUser = regexp.MustCompile(`^(user ([A-Za-z0-9_-]+) on)(\s.*)$`)

// withPassword puts the hash of a user's password into its line.
func (f *redisUsersFlags) withPassword(line string) (string, error) {
	user := aclUser.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
	if user == nil {
		return line, nil
	}
	for rule := range strings.FieldsSeq(user[3]) {
		if rule == "nopass" || rule[0] == '>' || rule[0] == '#' {
			return line, nil
		}
	}
	password, err := f.password(user[2])
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s #%x%s\n", user[1], sha256.Sum256([]byte(password)), user[3]), nil
}

// password reads a user's password, which is made if there is none.
func (f *redisUsersFlags) password(user string) (string, error) {
	file := filepath.Join(f.passwords, user+".password")
	password, err := readPassword(file)
	if !errors.Is(err, os.ErrNotExist) {
		return password, err
	}
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails
	password = hex.EncodeToString(random)
	return password, writeWhole(file, []byte(password+"\n"), 0o600)
}
