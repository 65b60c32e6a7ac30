package redisstore

import (
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/taskstore"
)

// fault says what a caller can do about an error of Redis.
type fault int

const (
	// faultPermanent stays when the call is repeated.
	faultPermanent fault = iota
	// faultTransient ends by itself: Redis is unavailable, starts, fails over or
	// moves slots.
	faultTransient
	// faultScripts means that the server lost its scripts, by a restart.
	faultScripts
	// faultRefused stays until an operator acts: frees memory, or restores this
	// client's rights or password. A repeat at once only adds load.
	faultRefused
)

func classify(err error) fault {
	var answer redis.Error
	switch {
	case errors.Is(err, redis.ErrClosed), errors.Is(err, taskstore.ErrUnavailable), errors.Is(err, errUnfit):
		return faultPermanent
	case !errors.As(err, &answer):
		return faultTransient // of the network: refused, reset, timed out
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		return faultScripts
	case says(answer, "OOM", "MISCONF", "NOAUTH", "WRONGPASS", "NOPERM"), deniesScript(answer):
		return faultRefused
	case says(answer, "LOADING", "READONLY", "TRYAGAIN", "MOVED", "ASK", "CLUSTERDOWN",
		"MASTERDOWN", "NOREPLICAS", "UNBLOCKED", "BUSY", "ERR max number of clients",
		"ERR WAIT cannot be used with replica"):
		return faultTransient
	}
	return faultPermanent
}

// unrun reports whether an error proves that a script did not run: it was not
// sent, or the server rejected it before its first write.
func unrun(err error) bool {
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return true
	}
	if errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) {
		return true
	}
	var answer redis.Error
	return errors.As(err, &answer) && says(answer, "NOSCRIPT", "LOADING", "READONLY", "MASTERDOWN", "OOM", "MISCONF",
		"NOREPLICAS", "NOAUTH", "WRONGPASS", "BUSY", "ERR max number of clients")
}

// says reports whether err begins with one of the kinds. Before Redis 7 the
// error of a command inside a script is wrapped in other text, after a minus
// sign.
func says(err redis.Error, kinds ...string) bool {
	message := err.Error()
	for _, kind := range kinds {
		if strings.HasPrefix(message, kind) || strings.Contains(message, "-"+kind+" ") {
			return true
		}
	}
	return false
}

// deniesScript reports whether the user may run the script, but not what it
// does. Only since Redis 7.2 such an answer begins with NOPERM.
func deniesScript(err redis.Error) bool {
	return strings.Contains(err.Error(), "The user executing the script can't")
}
