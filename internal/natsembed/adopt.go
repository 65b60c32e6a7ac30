package natsembed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// openAccount is the account of all clients of a server without an authority.
const openAccount = "$G"

// AdoptOpenStreams gives an account the streams which a server without an
// authority has left in a folder, unless the account has streams there. Without
// it what JetStream acknowledged would be lost when the server gets an authority.
// It must be called before the server starts.
func AdoptOpenStreams(storeDir, account string) error {
	folder := filepath.Join(storeDir, "jetstream")
	from, to := filepath.Join(folder, openAccount), filepath.Join(folder, account)
	if _, err := os.Stat(filepath.Join(from, "streams")); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if _, err := os.Stat(to); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return fmt.Errorf("give the streams to the account of NATS users: %w", err)
	}
	return nil
}
