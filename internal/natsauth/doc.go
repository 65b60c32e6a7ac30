// Package natsauth creates the NATS users of a fleet and defines their permissions,
// by NATS' decentralized authentication: brokers know one operator and its
// accounts, and accept every user that a key of an account has signed. So a host is
// enrolled without contact to a broker, and no broker has a list of hosts.
//
// An [Authority] is a folder of keys. Permissions are not in the users' own tokens
// but in the accounts, one set per [Role]: if a release needs another subject, it
// changes the account ([Open]) and no user.
//
// A host's user is derived from a secret of the authority, the host and its
// generation (see package fleetkey). Enrolling a host again yields the same user,
// raising its generation a different one. So revocation needs no list of enrolled
// hosts.
package natsauth
