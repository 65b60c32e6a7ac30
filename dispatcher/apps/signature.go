package apps

import (
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // the published signature form requires SHA-1, which is safe in HMAC
	"encoding/base64"
	"errors"
)

// ErrNoSigning means that the application has no signing key.
var ErrNoSigning = errors.New("the application has no signing key; `procfleet app add --signing` makes one")

// VerifySignature returns the application with this code if signature is the base64
// HMAC-SHA1 of text under its signing key. The hash of a secret cannot verify an HMAC,
// so signing uses a separate key, stored in plain text. The error is [ErrUnknown],
// [ErrNoSigning] or [ErrWrong].
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
