package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/procfleet/procfleet/internal/datafile"
	"github.com/procfleet/procfleet/internal/fleetkey"
)

// lockFolder creates a data directory and locks it against other procfleet processes,
// until unlock is called or this process ends. It rejects a directory that other users
// can write: its files contain commands and keys.
func lockFolder(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory %s: %w; name a writable one with --data", dir, err)
	}
	if err := datafile.OwnFolder(dir); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	name := filepath.Join(dir, "lock")
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // a directory that the user names
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w; name a writable one with --data", dir, err)
	}
	if err := datafile.LockSoon(file); err != nil {
		defer file.Close()
		if errors.Is(err, datafile.ErrHeld) {
			return nil, fmt.Errorf("data directory %s is in use by another procfleet (process %s holds %s): stop that process, or name another directory with --data", dir, holder(file), name)
		}
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	// Another process reads the pid for its error message.
	if err := errors.Join(file.Truncate(0), writePID(file)); err != nil {
		return nil, errors.Join(fmt.Errorf("write %s: %w", name, err), file.Close())
	}
	return func() { file.Close() }, nil
}

func writePID(file *os.File) error {
	_, err := fmt.Fprintln(file, os.Getpid())
	return err
}

func holder(file *os.File) string {
	text, err := io.ReadAll(io.LimitReader(file, 32))
	if pid := strings.TrimSpace(string(text)); err == nil && pid != "" {
		return pid
	}
	return "unknown"
}

// Names of files and directories in the data directory of `up`.
const (
	fleetKeyName = "fleet.key"
	natsAuthName = "nats-auth"
)

// fleetKeyIn returns the fleet key file in a data directory, and creates it if missing.
func fleetKeyIn(folder string) (file string, err error) {
	file = filepath.Join(folder, fleetKeyName)
	if err := fleetkey.Create(file); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return file, nil
}
