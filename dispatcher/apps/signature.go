package apps

import (
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // the published form of signatures has it, and HMAC does not need more of it
	"encoding/base64"
	"errors"
)

// ErrNoSigning means that an application has no signing key.
var ErrNoSigning = errors.New("the application has no signing key; `procfleet app add --signing` makes one")

// VerifySignature returns the application that made this signature of a text.
// Signatures need a key that both sides know, and hashes of secrets are none:
// so an application has a key of its own for them.
func (r *Registry) VerifySignature(code, text, signature string) (*Application, error) {
	e := (*r.current.Load())[code]
	switch {
	case e == nil:
		return nil, ErrUnknown
	case e.SigningKey == "":
		return nil, ErrNoSigning
	}
	given, err := base64.StdEncoding.DecodeString(signature)
	if err != nil {
		return nil, ErrWrong
	}
	mac := hmac.New(sha1.New, []byte(e.SigningKey))
	mac.Write([]byte(text))
	if !hmac.Equal(mac.Sum(nil), given) {
		return nil, ErrWrong
	}
	return &e.Application, nil
}
