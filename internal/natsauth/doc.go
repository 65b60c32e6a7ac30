// Package natsauth makes the NATS users of a fleet and decides what each of
// them may do, by NATS' decentralized authentication: brokers know one operator
// and its account, and accept every user that a key of the account has signed. So enrolling a host needs no broker, and no broker has a list of
// hosts.
//
// An [Authority] is a folder of keys. Rights are not in the users' own tokens
// but in the account, one set for each [Role]: a release that needs another
// subject changes the account ([Authority.Account]) and no user.
//
// A host's user is derived from a secret of the authority, the host and its
// generation (see package fleetkey). Enrolling a host again gives the same
// user, raising its generation another one, and revoking needs no list of enrolled
// hosts.
package natsauth
