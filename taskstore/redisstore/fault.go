package redisstore

import (
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/taskstore"
)

// fault is what an error of Redis means for the one who asked.
type fault int

const (
	// faultForGood is not cured by asking again.
	faultForGood fault = iota
	// faultPassing is: Redis is away, starts, fails over or moves slots.
	faultPassing
	// faultScripts means that the server lost its scripts, by a restart.
	faultScripts
	// faultRefused means that the server takes nothing until someone acts:
	// makes room, or gives this client its rights, back or the new password.
	// Asking again at once only adds load.
	faultRefused
)

func classify(err error) fault {
	var answer redis.Error
	switch {
	case errors.Is(err, redis.ErrClosed), errors.Is(err, taskstore.ErrUnavailable), errors.Is(err, errUnfit):
		return faultForGood
	case !errors.As(err, &answer):
		return faultPassing // the network's word: refused, reset, timed out
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		return faultScripts
	case says(answer, "OOM", "MISCONF", "NOAUTH", "WRONGPASS", "NOPERM"), deniesScript(answer):
		return faultRefused
	case says(answer, "LOADING", "READONLY", "TRYAGAIN", "MOVED", "ASK", "CLUSTERDOWN",
		"MASTERDOWN", "NOREPLICAS", "UNBLOCKED", "BUSY", "ERR max number of clients",
		"ERR WAIT cannot be used with replica"):
		return faultPassing
	}
	return faultForGood
}

// unrun reports whether an error proves that a script was not run: it was not
// sent, or the server refused it before its first write.
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

// says reports whether err is of one of the kinds, which are how errors begin.
// Before Redis 7 the error of a command inside a script comes wrapped in other
// text, with a minus sign before it.
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
