// Package tlsflags has the flags for certificates, the same for everything
// that connects or listens: they are named after the flag with the address.
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

// Client are the flags of what connects to a server: --nats-ca, --nats-cert
// and --nats-key beside --nats.
type Client struct {
	tlsfiles.Files
	of string
}

// Register adds the flags beside the flag of; server is what that flag leads to.
func (c *Client) Register(flags *pflag.FlagSet, of, server string) {
	c.register(flags, of, server, "instead of the system's; nothing but TLS is spoken then")
}

// RegisterForMany adds the flags for servers that no flag names.
func (c *Client) RegisterForMany(flags *pflag.FlagSet, of, servers string) {
	c.BesideSystem = true
	c.register(flags, of, servers, "beside the system's")
}

func (c *Client) register(flags *pflag.FlagSet, of, server, instead string) {
	c.of = of
	flags.StringVar(&c.CA, of+"-ca", "", "file of the certificates that sign those of "+server+", in PEM, "+instead)
	flags.StringVar(&c.Cert, of+"-cert", "", "file of the certificate that "+server+" is shown, in PEM, where it asks for one (mutual TLS)")
	flags.StringVar(&c.Key, of+"-key", "", "file of that certificate's private key")
}

// Check says what is wrong with the files.
func (c *Client) Check(s *settings.Settings) { s.Refused(c.ValidateClient(), c.names()) }

// CheckHTTPS is Check, and says what is wrong with the URL of the flag itself:
// it has to be one for TLS if files are named.
func (c *Client) CheckHTTPS(s *settings.Settings, url string) {
	c.Check(s)
	if !c.None() && !strings.HasPrefix(url, "https://") {
		s.Wrong(c.of, "is no https:// URL, and --%[1]s-ca or --%[1]s-cert is given", c.of)
	}
}

// CheckButDates is Check for what does part of its work without the server:
// that the time of a certificate is over is logged when it starts.
func (c *Client) CheckButDates(s *settings.Settings) {
	if err := c.ValidateClient(); !errors.Is(err, tlsfiles.ErrNotInForce) {
		s.Refused(err, c.names())
	}
}

func (c *Client) names() map[string]string {
	return map[string]string{"CA": c.of + "-ca", "Cert": c.of + "-cert", "Key": c.of + "-key"}
}

// Open reads the files; nil if none is named. What is wrong with them is told
// with the names of the flags.
func (c *Client) Open(log logrus.FieldLogger) (*tlsfiles.Client, error) {
	if c.None() {
		return nil, nil
	}
	client, err := c.Client(log)
	return client, named(err, c.names())
}

// OpenAtOnce is Check and Open in one, for commands that end soon and have no
// log.
func (c *Client) OpenAtOnce() (*tlsfiles.Client, error) {
	if err := c.ValidateClient(); err != nil {
		return nil, named(err, c.names())
	}
	silent := logrus.New()
	silent.SetOutput(io.Discard)
	return c.Open(silent)
}

// Given is how the flags are written that were given, each with a blank before it.
func (c *Client) Given() string {
	var text strings.Builder
	for _, f := range [][2]string{{"-ca", c.CA}, {"-cert", c.Cert}, {"-key", c.Key}} {
		if f[1] != "" {
			text.WriteString(" --" + c.of + f[0] + " " + f[1])
		}
	}
	return text.String()
}

// Server are the flags of what listens: --http-cert, --http-key and
// --http-client-ca beside --http.
type Server struct {
	tlsfiles.Files
	of string
}

// Register adds the flags beside the flag of.
func (l *Server) Register(flags *pflag.FlagSet, of string) {
	l.of = of
	flags.StringVar(&l.Cert, of+"-cert", "", "file of the certificate of --"+of+", followed by those that lead to its CA, in PEM; nothing but TLS is spoken there then")
	flags.StringVar(&l.Key, of+"-key", "", "file of that certificate's private key")
	flags.StringVar(&l.CA, of+"-client-ca", "", "file of the certificates that sign those of the clients of --"+of+", in PEM; without one of those nobody connects (mutual TLS)")
}

// Check says what is wrong with the files.
func (l *Server) Check(s *settings.Settings) { s.Refused(l.ValidateServer(), l.names()) }

func (l *Server) names() map[string]string {
	return map[string]string{"CA": l.of + "-client-ca", "Cert": l.of + "-cert", "Key": l.of + "-key"}
}

// Open reads the files; nil if none is named.
func (l *Server) Open(log logrus.FieldLogger) (*tls.Config, error) {
	if l.None() {
		return nil, nil
	}
	config, err := l.Server(log)
	return config, named(err, l.names())
}

// named says which flag an error is about.
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
