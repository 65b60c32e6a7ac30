package daemon

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
)

const healthcheckTimeout = 5 * time.Second

// Healthcheck returns a health check command for images without an HTTP client.
// byDefault is the URL if the argument is omitted, program the name in the example.
//
// On loopback it verifies the server's certificate only if a CA is given: it sends no
// secret, and the certificate is usually issued for another name.
func Healthcheck(program, byDefault string) *cobra.Command {
	var files tlsflags.Client
	cmd := &cobra.Command{
		Use:   "healthcheck [URL]",
		Short: "Check whether a role is ready; exit code 0 if it is, else 1",
		Long: "Check whether a role is ready: exit with 0 if the URL (default " + byDefault + ") responds 200 within 5 s, else 1.\n" +
			"On loopback an https URL may have any certificate unless --server-ca is given.",
		Example: "  " + program + " healthcheck " + byDefault,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return command.Usagef("healthcheck: one URL, not %d", len(args))
			}
			url := append(args, byDefault)[0]
			s := settings.Load(cmd) // procfleet-agent has no parent command that loads them
			files.Check(s)
			if err := s.Err(); err != nil {
				return err
			}
			client, err := healthClient(url, &files)
			if err != nil {
				return command.Usagef("healthcheck: %w", err)
			}
			return healthcheck(cmd.Context(), client, url)
		},
	}
	files.Register(cmd.Flags(), "server", "the role")
	return cmd
}

// healthClient returns the HTTP client for a URL.
func healthClient(text string, files *tlsflags.Client) (*http.Client, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	client, err := files.OpenAtOnce()
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if client != nil {
		transport.TLSClientConfig = client.Config().Clone()
	}
	if files.CA == "" && OnLoopback(net.JoinHostPort(u.Hostname(), u.Port())) {
		transport.TLSClientConfig.InsecureSkipVerify = true
	}
	return &http.Client{Transport: transport}, nil
}

func healthcheck(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, healthcheckTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return command.Usagef("healthcheck: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	const enough = 1 << 10
	body, err := io.ReadAll(io.LimitReader(resp.Body, enough))
	if err != nil {
		return err
	}
	return fmt.Errorf("%s responds %s: %s", url, resp.Status, strings.TrimSpace(string(body)))
}
