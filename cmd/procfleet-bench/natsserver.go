package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/procfleet/procfleet/cmd/internal/command"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/cmd/internal/tlsflags"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsembed"
)

// newNATSServer runs the embedded NATS as a separate process, for benchmarks on
// machines without a nats-server.
func newNATSServer() *cobra.Command {
	var cfg natsembed.Config
	var logs daemon.Logs
	var files tlsflags.Server
	var authority string
	cmd := &cobra.Command{
		Use:     "nats-server",
		Short:   "Run the embedded NATS as a separate process",
		Example: "  procfleet-bench nats-server --listen 127.0.0.1:4222 --data nats-data",
		Hidden:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !daemon.OnLoopback(cfg.Listen) {
				return command.Usagef("--listen: %s is not an address on loopback: any network client could run commands on every host; listen on 127.0.0.1:4222", cfg.Listen)
			}
			log, err := logs.Logger(cmd.ErrOrStderr())
			if err != nil {
				return command.Usagef("%w", err)
			}
			cfg.Log = log
			if cfg.TLS, err = files.Open(log); err != nil {
				return command.Usagef("%w", err)
			}
			if authority != "" {
				if cfg.Authority, err = broker(authority); err != nil {
					return err
				}
			}
			server, err := natsembed.Start(cfg)
			if err != nil {
				return err
			}
			defer server.Shutdown()
			fmt.Fprintln(cmd.OutOrStdout(), "url", server.ClientURL())
			<-cmd.Context().Done()
			return nil
		},
	}
	cmd.Flags().StringVar(&cfg.Listen, "listen", "127.0.0.1:4222", "listen address; port 0 selects a free port")
	files.Register(cmd.Flags(), "listen")
	cmd.Flags().StringVar(&authority, "nats-auth", "", "directory of the NATS authority (default: every client is admitted)")
	cmd.Flags().StringVar(&cfg.StoreDir, "data", "nats-data", "directory of JetStream files")
	logs.Register(cmd.Flags())
	return cmd
}

// broker returns the public part of the authority in a directory.
func broker(dir string) (*natsauth.Broker, error) {
	authority, err := natsauth.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("--nats-auth: %w", err)
	}
	return authority.Broker()
}
