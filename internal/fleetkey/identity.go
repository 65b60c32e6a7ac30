package fleetkey

import (
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"
)

// Identity is the result of enrolling a host: its keys and its NATS credentials.
type Identity struct {
	Host *Host // never nil
	// NATS is the host's user in the form of NATS' own tools, a JWT and a seed
	// in one text; empty if NATS requires none.
	NATS string
}

// identityFile is the stored form of an identity: YAML in a private file.
type identityFile struct {
	HostFile
	NATS string `json:"nats,omitempty"`
}

// Text returns the stored form.
func (i *Identity) Text() ([]byte, error) {
	text, err := yaml.Marshal(identityFile{HostFile: i.Host.File(), NATS: i.NATS})
	if err != nil {
		return nil, fmt.Errorf("identity of host %s: %w", i.Host.Name(), err)
	}
	return text, nil
}

// ParseIdentity parses the stored form. The errors name no secret.
func ParseIdentity(text []byte) (*Identity, error) {
	var kept identityFile
	if err := yaml.UnmarshalStrict(text, &kept); err != nil {
		return nil, errors.New("it is not the identity of a host: the names \"host\" and \"keys\", and at most \"agent_id\" and \"nats\" beside them")
	}
	host, err := kept.Open()
	if err != nil {
		return nil, err
	}
	return &Identity{Host: host, NATS: kept.NATS}, nil
}
