package daemon

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/settings"
)

const healthcheckTimeout = 5 * time.Second

// Healthcheck is a command for images that have no other program that could
// ask. byDefault is the URL that it asks unless it is given another, program
// the name in its example.
func Healthcheck(program, byDefault string) *cobra.Command {
	return &cobra.Command{
		Use:     "healthcheck [URL]",
		Short:   "Ask a role whether it is ready; exit code 0 if it is, else 1",
		Long:    "Ask a role whether it is ready: exit code 0 if the URL (default " + byDefault + ") answers 200 within 5 s, else 1.",
		Example: "  " + program + " healthcheck " + byDefault,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch len(args) {
			case 0:
				return healthcheck(cmd.Context(), byDefault)
			case 1:
				return healthcheck(cmd.Context(), args[0])
			}
			return fmt.Errorf("healthcheck: one URL, not %d (%w)", len(args), settings.ErrUsage)
		},
	}
}

func healthcheck(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, healthcheckTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("healthcheck: %w (%w)", err, settings.ErrUsage)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	const enough = 1 << 10
	said, err := io.ReadAll(io.LimitReader(resp.Body, enough))
	if err != nil {
		return err
	}
	return fmt.Errorf("%s answers %s: %s", url, resp.Status, strings.TrimSpace(string(said)))
}
