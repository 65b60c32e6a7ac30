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
	"github.com/procfleet/procfleet/internal/datafile"
)

// maxPassword is the maximum size of a password file in bytes.
const maxPassword = 4 << 10

// redisPassword returns a function that reads the password file; nil if file is empty.
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
		return "", fmt.Errorf("%s: the first line is empty, want the password", file)
	}
	return string(line), nil
}

// redisUsersFlags are the flags of `redis-users`.
type redisUsersFlags struct{ rights, passwords, out string }

func newRedisUsers() *cobra.Command {
	var f redisUsersFlags
	cmd := &cobra.Command{
		Use:   "redis-users",
		Short: "Generate passwords and the ACL file of Redis users",
		Long: `Generate a password for each user in --rights and write the ACL file for Redis's option aclfile. Passwords are generated
once, in files like DIR/worker.password, for --redis-password-file; the ACL file contains only hashes. Users that are
off, need no password or have one stay unchanged.

To replace a password, remove its file, run the command again, and, as the user operator, run ACL LOAD.`,
		Example: `  procfleet redis-users --rights deploy/redis-users.acl --passwords fleet/redis --out users.acl`,
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
			return command.Usagef("--%s is required", needed[0])
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
	// World-readable, because Redis runs as another user. The hash of a random 256-bit
	// password is no secret.
	if err := writeWhole(f.out, []byte(acl.String()), 0o644); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	return nil
}

// aclUser matches the line of an enabled user in an ACL file. Its groups are the text up
// to "on", the name, and the rules.
var aclUser = regexp.MustCompile(`^(user ([A-Za-z0-9_-]+) on)(\s.*)$`)

// withPassword adds the hash of the user's password to an ACL line, unless it has one.
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

// password reads a user's password, or generates it.
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
