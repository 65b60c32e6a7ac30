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

// lockFolder makes a data folder and keeps other procfleets out of it until
// unlock is called or this process ends, however it ends. A folder in which
// others may write is refused: what is in it is carried out and believed.
func lockFolder(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data folder %s: %w; name one that you may write to with --data", dir, err)
	}
	if err := datafile.OwnFolder(dir); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	name := filepath.Join(dir, "lock")
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600) //nolint:gosec // the data folder of whoever starts the command
	if err != nil {
		return nil, fmt.Errorf("data folder %s: %w; name one that you may write to with --data", dir, err)
	}
	if err := datafile.LockSoon(file); err != nil {
		defer file.Close()
		if errors.Is(err, datafile.ErrHeld) {
			return nil, fmt.Errorf("data folder %s is in use by another procfleet (process %s holds %s): end that one, or give this one another folder with --data", dir, holder(file), name)
		}
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	// The pid is for whoever is refused; the lock itself does not need it.
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

// Names in the data folder of `up`.
const (
	fleetKeyName = "fleet.key"
	natsAuthName = "nats-auth"
)

// fleetKeyIn is the file of the keys of a data folder, made if it is missing.
func fleetKeyIn(folder string) (file string, err error) {
	file = filepath.Join(folder, fleetKeyName)
	if err := fleetkey.Create(file); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return file, nil
}
