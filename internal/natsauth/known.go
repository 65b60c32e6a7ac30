package natsauth

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
	"sigs.k8s.io/yaml"

	"github.com/procfleet/procfleet/internal/datafile"
)

// usersFile lists the users that are not hosts, whose keys cannot be derived. It
// contains no secrets.
const usersFile = "users.yaml"

// knownUser is a user whose credentials have not expired.
type knownUser struct {
	User  string    `json:"user"` // public key
	Role  Role      `json:"role"`
	Name  string    `json:"name"`
	Until time.Time `json:"until,omitzero"` // zero: no expiry
}

// KeepUser is [Authority.NewUser] for a user that can be revoked by its name.
func (a *Authority) KeepUser(role Role, name string, cloud int64, valid time.Duration) (credentials string, err error) {
	if credentials, err = a.NewUser(role, name, cloud, valid); err != nil {
		return "", err
	}
	return credentials, a.remember(role, name, credentials)
}

// remember stores the user of credentials in usersFile, and removes expired users.
func (a *Authority) remember(role Role, name, credentials string) error {
	user, until, err := ParseCredentials([]byte(credentials))
	if err != nil {
		return err
	}
	return datafile.Update(filepath.Join(a.dir, usersFile), maxAccount, func(old []byte) ([]byte, error) {
		known, err := parseUsers(old)
		if err != nil {
			return nil, err
		}
		known = slices.DeleteFunc(known, func(u knownUser) bool { return !u.Until.IsZero() && time.Now().After(u.Until) })
		return yaml.Marshal(append(known, knownUser{User: user, Role: role, Name: name, Until: until}))
	})
}

func parseUsers(text []byte) (known []knownUser, err error) {
	if err := yaml.UnmarshalStrict(text, &known); err != nil {
		return nil, fmt.Errorf("%s: %w", usersFile, err)
	}
	return known, nil
}

// errOfSystem is the error for the revocation of a user in the system account.
var errOfSystem = errors.New("is in the system account, which has no revocations; it can neither read nor change the fleet. Create such users with --valid")

// UsersCalled returns the public keys of all users with the given name. A public key
// is accepted as a name, too.
func (a *Authority) UsersCalled(name string) ([]string, error) {
	if nkeys.IsValidPublicUserKey(name) {
		return []string{name}, nil
	}
	text, _, err := datafile.ReadPrivate(filepath.Join(a.dir, usersFile), maxAccount)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	known, err := parseUsers(text)
	if err != nil {
		return nil, err
	}
	var users, names []string
	for _, u := range known {
		switch {
		case u.Name == name && u.Role.ofSystem():
			return nil, fmt.Errorf("%s %w", name, errOfSystem)
		case u.Name == name:
			users = append(users, u.User)
		}
		names = append(names, u.Name)
	}
	if len(users) == 0 {
		slices.Sort(names)
		return nil, fmt.Errorf("no user of this authority is named %q; known users: %s. Name any other user by its credentials",
			name, strings.Join(slices.Compact(names), ", "))
	}
	return users, nil
}

// UserOf returns the public key of the user of credentials, if this user can be
// revoked individually. The errors contain no secret.
func (a *Authority) UserOf(credentials []byte) (string, error) {
	user, _, err := ParseCredentials(credentials)
	if err != nil {
		return "", err
	}
	token, err := jwt.ParseDecoratedJWT(credentials)
	if err != nil {
		return "", err
	}
	claims, err := jwt.DecodeUserClaims(token)
	switch {
	case err != nil:
		return "", err
	case claims.Issuer == public(a.system):
		return "", fmt.Errorf("it %w", errOfSystem)
	case claims.IssuerAccount != public(a.account) && claims.IssuerAccount != public(a.producers):
		return "", errors.New("it was made by another authority")
	case slices.ContainsFunc(claims.Tags, func(tag string) bool { return strings.HasPrefix(tag, tagHost+":") }):
		return "", fmt.Errorf("it is the user of host %s, whose keys are to be revoked with it: procfleet revoke --host %s", claims.Name, claims.Name)
	}
	return user, nil
}
