package natsconn

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// user authenticates this process to the servers.
type user struct {
	credentials func() ([]byte, error) // nil: no user
}

func (u *user) token() (string, error) {
	text, err := u.credentials()
	if err != nil || len(text) == 0 {
		return "", err
	}
	return nkeys.ParseDecoratedJWT(text)
}

// sign signs the server's nonce with the user's key.
func (u *user) sign(nonce []byte) ([]byte, error) {
	text, err := u.credentials()
	if err != nil || len(text) == 0 {
		return nil, err
	}
	key, err := nkeys.ParseDecoratedNKey(text)
	if err != nil {
		return nil, errors.New("the credentials contain no key of a NATS user")
	}
	defer key.Wipe()
	return key.Sign(nonce)
}

// explain adds the remedy to an authentication error, since the server sends the
// same error for every cause.
func (u *user) explain(err error) error {
	refused := errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked)
	if !refused {
		return err
	}
	const again = "replace them, no restart is needed"
	token := ""
	if u.credentials != nil {
		token, _ = u.token() // an unreadable token counts as missing
	}
	switch until := expiry(token); {
	case token == "":
		return fmt.Errorf("%w: the server requires credentials, and none for NATS are configured", err)
	case !until.IsZero() && time.Now().After(until):
		return fmt.Errorf("%w: the credentials for NATS expired at %s: %s", err, until.UTC().Format(time.RFC3339), again)
	}
	return fmt.Errorf("%w: the credentials for NATS are revoked, or were issued by another authority: %s", err, again)
}

// expiry returns when a token expires; zero if it does not expire or is invalid.
func expiry(token string) time.Time {
	_, rest, _ := strings.Cut(token, ".")
	body, _, _ := strings.Cut(rest, ".")
	text, err := base64.RawURLEncoding.DecodeString(body)
	var claims struct {
		Expires int64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(text, &claims) != nil || claims.Expires == 0 {
		return time.Time{}
	}
	return time.Unix(claims.Expires, 0)
}
