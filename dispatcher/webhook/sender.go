package webhook

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/internal/destination"
	"github.com/procfleet/procfleet/internal/tlsfiles"
)

const (
	// sendTimeout limits one attempt, from the connection to the end of the reply.
	sendTimeout = 15 * time.Second
	// maxReply is the number of bytes of a reply that are read, so that its connection is used again.
	maxReply = 4 << 10
	// connectionsPerHost limits the concurrent requests to one host. Each webhook has one at a time.
	connectionsPerHost = catalog.MaxWebhooks
)

// Sender sends signed requests to webhooks, in the form of Standard Webhooks
// (https://www.standardwebhooks.com). Create it with [NewSender]; several goroutines may use it.
type Sender struct{ client *http.Client }

// NewSender returns a sender that sends only to destinations that policy permits. Without files it
// trusts the system's certificate authorities.
func NewSender(policy destination.Policy, files *tlsfiles.Client) *Sender {
	var transport http.RoundTripper = policy.Transport(connectionsPerHost)
	if files != nil {
		transport = files.Transport(policy.Transport(connectionsPerHost))
	}
	return &Sender{client: &http.Client{
		Transport: transport, Timeout: sendTimeout,
		// Follow no redirects: the event must only reach the URL of the webhook.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes the idle connections.
func (s *Sender) Close() { s.client.CloseIdleConnections() }

// errGone is the error of a receiver that wants no further deliveries.
var errGone = errors.New("the receiver answered 410 Gone and gets no further deliveries until the webhook is set again")

// Send sends the event with an id, and returns nil if the receiver has accepted it: if it replied
// with a status from 200 to 299.
func (s *Sender) Send(ctx context.Context, w *catalog.Webhook, id string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(body))
	if err != nil {
		return errors.New("the URL of the webhook is not valid")
	}
	if err := sign(request.Header, w, id, body, time.Now()); err != nil {
		return err
	}
	response, err := s.client.Do(request)
	if err != nil {
		if whole, ok := errors.AsType[*url.Error](err); ok {
			err = whole.Err // drop the wrapping error: it has the URL, which may contain a secret
		}
		return fmt.Errorf("request to %s: %w", request.URL.Host, err)
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, maxReply)
	switch {
	case response.StatusCode == http.StatusGone:
		return errGone
	case response.StatusCode/100 != 2:
		return fmt.Errorf("%s answered %s", request.URL.Host, response.Status)
	}
	return nil
}

// sign sets the headers of a request. Each valid secret has a signature.
func sign(header http.Header, w *catalog.Webhook, id string, body []byte, now time.Time) error {
	var signatures []string
	for _, secret := range w.Secrets {
		if !secret.Until.IsZero() && now.After(secret.Until) {
			continue
		}
		signer, err := standardwebhooks.NewWebhook(secret.Secret)
		if err != nil {
			return errors.New("a stored secret of the webhook is damaged: rotate it")
		}
		signature, err := signer.Sign(id, now, body)
		if err != nil {
			return fmt.Errorf("sign: %w", err)
		}
		signatures = append(signatures, signature)
	}
	header.Set("Content-Type", "application/json")
	header.Set(standardwebhooks.HeaderWebhookID, id)
	header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	return nil
}

// rotation is the time for which a secret is valid after it was replaced.
const rotation = 24 * time.Hour

// NewSecret returns a random secret.
func NewSecret() catalog.WebhookSecret {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return catalog.WebhookSecret{Secret: "whsec_" + base64.StdEncoding.EncodeToString(key)}
}

// Rotate returns a new secret, followed by the newest of the old ones, which becomes invalid after
// 24 hours.
func Rotate(old []catalog.WebhookSecret, now time.Time) []catalog.WebhookSecret {
	secrets := []catalog.WebhookSecret{NewSecret()}
	if len(old) > 0 {
		secrets = append(secrets, catalog.WebhookSecret{Secret: old[0].Secret, Until: now.Add(rotation)})
	}
	return secrets
}
