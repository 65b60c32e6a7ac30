package main

import (
	"context"
	"maps"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/cmd/internal/daemon"
	"github.com/procfleet/procfleet/internal/natsauth"
	"github.com/procfleet/procfleet/internal/natsconn"
	"github.com/procfleet/procfleet/internal/natsembed"
)

// accountPoll is the interval at which `up` applies changed NATS accounts.
const accountPoll = time.Second

// startNATS starts the embedded NATS. The authority is nil if NATS accepts every
// client.
func (f *upFlags) startNATS(ctx context.Context, p *daemon.Process) (*natsembed.Server, *natsauth.Authority, error) {
	files, err := f.natsListenTLS.Open(p.Log)
	if err != nil {
		return nil, nil, err
	}
	cfg := natsembed.Config{StoreDir: filepath.Join(f.data, "nats"), Listen: f.natsListen, TLS: files, Log: p.Log}
	authority, err := f.natsAuthority()
	if err == nil && authority != nil {
		cfg.Authority, err = authority.Broker()
	}
	if err == nil && authority != nil {
		err = natsembed.AdoptOpenStreams(cfg.StoreDir, cfg.Authority.Account)
	}
	if err != nil {
		return nil, nil, err
	}
	server, err := natsembed.Start(cfg)
	if err == nil && authority != nil {
		go keepAccount(ctx, server, authority, cfg.Authority, p.Log)
	}
	return server, authority, err
}

// natsAuthority returns the authority of the embedded NATS, or nil if NATS accepts every
// client. An authority is required on loopback, too: every local account could publish
// there.
func (f *upFlags) natsAuthority() (*natsauth.Authority, error) {
	switch {
	case f.natsAuth != "":
		return natsauth.Open(f.natsAuth)
	case f.allowUnauthenticated:
		return nil, nil //nolint:nilnil // nil means that NATS accepts every client
	}
	return createAuthority(filepath.Join(f.data, natsAuthName), natsauth.OpenOrCreate)
}

// keepAccount applies changed account tokens, such as revocations, until ctx ends.
func keepAccount(ctx context.Context, server *natsembed.Server, authority *natsauth.Authority, known *natsauth.Broker, log logrus.FieldLogger) {
	inForce := maps.Clone(known.Accounts)
	ticker := time.NewTicker(accountPoll)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		broker, err := authority.Broker()
		if err != nil {
			continue // the file may be missing for a moment; retry
		}
		for _, account := range broker.Changing() {
			token := broker.Accounts[account]
			if token == inForce[account] {
				continue
			}
			if err := server.SetAccount(account, token); err != nil {
				log.WithError(err).WithField("account", account).Error("NATS user rights not updated")
			}
			inForce[account] = token
		}
	}
}

// serverUser creates credentials with which `up` connects to its embedded NATS.
func serverUser(authority *natsauth.Authority) (func() ([]byte, error), error) {
	text, err := authority.NewUser(natsauth.Server, "up", 0, 0)
	return func() ([]byte, error) { return []byte(text), nil }, err
}

// agentLink returns the NATS configuration of the local agent.
func agentLink(back *backends) natsconn.Config {
	host := thisHost()
	cfg := back.natsConfig
	cfg.Name, cfg.InboxPrefix = "agent "+host.String(), agentproto.AgentInbox(int64(host.Cloud), host.Addr)
	if back.users != nil {
		// Use the host's current generation: the agent reconnects after a revocation.
		cfg.Credentials = func() ([]byte, error) {
			text, err := back.users.Enroll(hostUser(host, back.keys().Generation(host.String())), 0)
			return []byte(text), err
		}
	}
	return cfg
}
