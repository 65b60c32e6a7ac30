package natsauth

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/procfleet/procfleet/agentproto"
	"github.com/procfleet/procfleet/internal/datafile"
)

// HostUser identifies the user of a host's agent.
type HostUser struct {
	Cloud      int64
	Addr       netip.Addr
	Generation int // how often the host was revoked
}

func (u *HostUser) name() string { return strconv.FormatInt(u.Cloud, 10) + ":" + u.Addr.String() }

// pair derives the key of the user.
func (a *Authority) pair(u *HostUser) (nkeys.KeyPair, error) {
	name := u.name()
	info := binary.BigEndian.AppendUint64([]byte("procfleet NATS user v1"), uint64(len(name)))
	info = append(info, name...)
	info = binary.BigEndian.AppendUint64(info, uint64(u.Generation)) //nolint:gosec // never negative, as in fleetkey.Ring
	raw, err := hkdf.Expand(sha256.New, a.hosts, string(info), secretSize)
	if err != nil {
		return nil, err
	}
	return nkeys.FromRawSeed(nkeys.PrefixByteUser, raw)
}

// Public returns the public key of the user, for [Authority.Revoke].
func (a *Authority) Public(u *HostUser) (string, error) {
	pair, err := a.pair(u)
	if err != nil {
		return "", err
	}
	return pair.PublicKey()
}

// Enroll returns credentials for a host's agent in the format of NATS tools. They
// expire after the time valid; 0 means never.
func (a *Authority) Enroll(u *HostUser, valid time.Duration) (credentials string, err error) {
	pair, err := a.pair(u)
	if err != nil {
		return "", err
	}
	claims := jwt.NewUserClaims(public(pair))
	claims.Name = u.name()
	claims.Tags.Add(
		fmt.Sprintf("%s:%d", tagCloud, u.Cloud),
		fmt.Sprintf("%s:%s", tagHost, agentproto.HostToken(u.Addr)),
	)
	return a.sign(Agent, claims, pair, valid)
}

// NewUser returns credentials for a user of a role other than [Agent], without
// storing the user; see [Authority.KeepUser]. cloud applies to a [Leaf] only.
func (a *Authority) NewUser(role Role, name string, cloud int64, valid time.Duration) (credentials string, err error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return "", err
	}
	claims := jwt.NewUserClaims(public(pair))
	claims.Name = name
	if role == Leaf {
		claims.Tags.Add(fmt.Sprintf("%s:%d", tagCloud, cloud))
	}
	return a.sign(role, claims, pair, valid)
}

func (a *Authority) sign(role Role, claims *jwt.UserClaims, pair nkeys.KeyPair, valid time.Duration) (string, error) {
	if valid > 0 {
		claims.Expires = time.Now().Add(valid).Unix()
	}
	signer := a.system
	if role.ofSystem() {
		claims.UserPermissionLimits = permissions(role, claims.Subject)
	} else {
		signer = a.signing[role]
		claims.SetScoped(true)
		claims.IssuerAccount = public(a.account)
		if role == Producer {
			claims.IssuerAccount = public(a.producers)
		}
	}
	token, err := claims.Encode(signer)
	if err != nil {
		return "", err
	}
	credentials, err := jwt.FormatUserConfig(token, []byte(seed(pair)))
	return string(credentials), err
}

// UserPath returns the path of the credentials that [Authority.WriteUser] writes.
func (a *Authority) UserPath(role Role) string { return filepath.Join(a.dir, string(role)+".creds") }

// WriteUser writes credentials of a role into the folder, unless the folder has
// credentials whose user is not in revoked. It reports whether it wrote them.
func (a *Authority) WriteUser(role Role, revoked ...string) (made bool, err error) {
	var credentials string
	err = datafile.Update(a.UserPath(role), maxKeysFile, func(old []byte) (_ []byte, err error) {
		if old != nil {
			if user, _, err := ParseCredentials(old); err != nil || !slices.Contains(revoked, user) {
				return old, nil //nolint:nilerr // a file that is not ours stays
			}
		}
		credentials, err = a.NewUser(role, string(role), 0, 0)
		return []byte(credentials), err
	})
	if err != nil || credentials == "" {
		return false, err
	}
	return true, a.remember(role, string(role), credentials)
}

// ReadCredentials returns the content of a credentials file. It rejects a file with
// unsafe permissions, see [datafile.ReadPrivate].
func ReadCredentials(file string) ([]byte, error) {
	text, _, err := datafile.ReadPrivate(file, maxKeysFile)
	return text, err
}

// ParseCredentials returns the public key of the user of credentials, and the time
// of expiry, zero if they do not expire. The errors contain no secret.
func ParseCredentials(text []byte) (user string, until time.Time, err error) {
	token, err := jwt.ParseDecoratedJWT(text)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("it contains no token of a NATS user: %w", err)
	}
	claims, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("its token is not of a NATS user: %w", err)
	}
	if claims.Expires > 0 {
		until = time.Unix(claims.Expires, 0)
	}
	return claims.Subject, until, nil
}
