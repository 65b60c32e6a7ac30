package redisconn

import (
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/taskstore"
)

// fault classifies a Redis error by whether a retry can succeed.
type fault int

const (
	// faultPermanent is an error that a retry cannot resolve.
	faultPermanent fault = iota
	// faultTransient is an error that ends without intervention: Redis is unavailable,
	// starting, failing over or moving slots.
	faultTransient
	// faultScripts means that the server has lost its scripts, for example in a
	// restart.
	faultScripts
	// faultRefused is an error that an operator must resolve by freeing memory or
	// restoring the client's permissions or password. An immediate retry would only add
	// load.
	faultRefused
)

func classify(err error) fault {
	var answer redis.Error
	switch {
	case errors.Is(err, redis.ErrClosed), errors.Is(err, taskstore.ErrUnavailable), errors.Is(err, errUnfit):
		return faultPermanent
	case !errors.As(err, &answer):
		return faultTransient // network error: connection refused, reset or timed out
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

// unrun reports whether an error proves that a script did not run: the client did not
// send it, or the server rejected it before its first write.
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

// says reports whether err begins with one of the error kinds. Before Redis 7 the error
// of a command inside a script is wrapped in other text, after a minus sign.
func says(err redis.Error, kinds ...string) bool {
	message := err.Error()
	for _, kind := range kinds {
		if strings.HasPrefix(message, kind) || strings.Contains(message, "-"+kind+" ") {
			return true
		}
	}
	return false
}

// deniesScript reports whether the user may run the script but not one of its commands.
// The error begins with NOPERM only since Redis 7.2.
func deniesScript(err redis.Error) bool {
	return strings.Contains(err.Error(), "The user executing the script can't")
}

// IsTransient reports whether an error ends without intervention.
func IsTransient(err error) bool { return classify(err) == faultTransient }
