// Package tlsflags defines the certificate flags of clients and listeners. Their names
// begin with the name of the address flag.
package tlsflags

import (
	"crypto/tls"
	"errors"
	"io"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"github.com/procfleet/procfleet/cmd/internal/settings"
	"github.com/procfleet/procfleet/internal/invalid"
	"github.com/procfleet/procfleet/internal/tlsfiles"
)

// Client holds the certificate flags of a client: for the address flag --nats
// they are --nats-ca, --nats-cert and --nats-key.
type Client struct {
	tlsfiles.Files
	of string
}

// Register adds the flags for the address flag of; server is its name in the help.
func (c *Client) Register(flags *pflag.FlagSet, of, server string) {
	c.register(flags, of, server, "in place of the system's")
}

// RegisterForMany adds the flags for servers without an address flag. The authorities
// of --X-ca are trusted in addition to the system's.
func (c *Client) RegisterForMany(flags *pflag.FlagSet, of, servers string) {
	c.BesideSystem = true
	c.register(flags, of, servers, "in addition to the system's")
}

func (c *Client) register(flags *pflag.FlagSet, of, server, scope string) {
	c.of = of
	flags.StringVar(&c.CA, of+"-ca", "", "PEM certificate authorities for "+server+", "+scope)
	flags.StringVar(&c.Cert, of+"-cert", "", "PEM client certificate presented to "+server)
	flags.StringVar(&c.Key, of+"-key", "", "PEM private key of --"+of+"-cert")
}

// Check reports invalid files to s.
func (c *Client) Check(s *settings.Settings) { s.Refused(c.ValidateClient(), c.names()) }

// CheckHTTPS is Check, and also reports certificate files for a url without https://.
func (c *Client) CheckHTTPS(s *settings.Settings, url string) {
	c.Check(s)
	if !c.None() && !strings.HasPrefix(url, "https://") {
		s.Wrong(c.of, "is not an https:// URL, which --%[1]s-ca and --%[1]s-cert require", c.of)
	}
}

// CheckButDates is Check for a role that also works without the server: it accepts
// expired certificates, which the role logs at startup.
func (c *Client) CheckButDates(s *settings.Settings) {
	if err := c.ValidateClient(); !errors.Is(err, tlsfiles.ErrNotInForce) {
		s.Refused(err, c.names())
	}
}

func (c *Client) names() map[string]string {
	return map[string]string{"CA": c.of + "-ca", "Cert": c.of + "-cert", "Key": c.of + "-key"}
}

// Open reads the files and returns nil if no file is set. Its errors contain the names
// of the flags.
func (c *Client) Open(log logrus.FieldLogger) (*tlsfiles.Client, error) {
	if c.None() {
		return nil, nil
	}
	client, err := c.Client(log)
	return client, named(err, c.names())
}

// OpenAtOnce combines Check and Open for short commands without a log.
func (c *Client) OpenAtOnce() (*tlsfiles.Client, error) {
	if err := c.ValidateClient(); err != nil {
		return nil, named(err, c.names())
	}
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	return c.Open(silent)
}

// Given returns the given flags in command-line form, each preceded by a space.
func (c *Client) Given() string {
	var text strings.Builder
	for _, f := range [][2]string{{"-ca", c.CA}, {"-cert", c.Cert}, {"-key", c.Key}} {
		if f[1] != "" {
			text.WriteString(" --" + c.of + f[0] + " " + f[1])
		}
	}
	return text.String()
}

// Server holds the certificate flags of a listener: for the address flag --http
// they are --http-cert, --http-key and --http-client-ca.
type Server struct {
	tlsfiles.Files
	of string
}

// Register adds the flags for the address flag of.
func (l *Server) Register(flags *pflag.FlagSet, of string) {
	l.of = of
	flags.StringVar(&l.Cert, of+"-cert", "", "PEM certificate chain served on --"+of+" (enables TLS)")
	flags.StringVar(&l.Key, of+"-key", "", "PEM private key of --"+of+"-cert")
	flags.StringVar(&l.CA, of+"-client-ca", "", "PEM certificate authorities of the client certificates required on --"+of)
}

// Check reports invalid files to s.
func (l *Server) Check(s *settings.Settings) { s.Refused(l.ValidateServer(), l.names()) }

func (l *Server) names() map[string]string {
	return map[string]string{"CA": l.of + "-client-ca", "Cert": l.of + "-cert", "Key": l.of + "-key"}
}

// Open reads the files and returns nil if no file is set.
func (l *Server) Open(log logrus.FieldLogger) (*tls.Config, error) {
	if l.None() {
		return nil, nil
	}
	config, err := l.Server(log)
	return config, named(err, l.names())
}

// named replaces the field names in an error by the names of their flags.
func named(err error, flags map[string]string) error {
	fields, rest := invalid.Fields(err)
	for _, f := range fields {
		rest = append(rest, &flagError{flags[f.Name], f.Problem})
	}
	return errors.Join(rest...)
}

type flagError struct {
	flag string
	err  error
}

func (e *flagError) Error() string { return "--" + e.flag + ": " + e.err.Error() }

func (e *flagError) Unwrap() error { return e.err }
