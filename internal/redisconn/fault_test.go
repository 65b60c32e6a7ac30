package redisconn

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
)

// answeredError is an error reply of a server.
type answeredError string

func (e answeredError) Error() string { return string(e) }
func (answeredError) RedisError()     {}

var _ redis.Error = answeredError("")

func TestWhichAnswersOfTheServerPass(t *testing.T) {
	t.Parallel()
	for message, passing := range map[string]bool{
		"READONLY You can't write against a read only replica.":                                                             true,
		"LOADING Redis is loading the dataset in memory":                                                                    true,
		"CLUSTERDOWN The cluster is down":                                                                                   true,
		"CLUSTERDOWN Hash slot not served":                                                                                  true,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":                                  true,
		"TRYAGAIN Multiple keys request during rehashing of slot":                                                           true,
		"MOVED 3999 127.0.0.1:6381":                                                                                         true,
		"ASK 3999 127.0.0.1:6381":                                                                                           true,
		"NOREPLICAS Not enough good replicas to write.":                                                                     true,
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.":                            true,
		"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)":                      true,
		"NOSCRIPT No matching script. Please use EVAL.":                                                                     true,
		"ERR max number of clients reached":                                                                                 true,
		"OOM command not allowed when used memory > 'maxmemory'.":                                                           true,
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.":                  true,
		"NOAUTH Authentication required.":                                                                                   true,
		"WRONGPASS invalid username-password pair or user is disabled.":                                                     true,
		"NOPERM this user has no permissions to run the 'evalsha' command":                                                  true,
		"NOPERM User fleet has no permissions to run the 'set' command script: 6fba, on @user_script:1.":                    true,
		"ERR The user executing the script can't run this command or subcommand script: a8e0, on @user_script:1.":           true,
		"ERR Error running script (call to f_a8e0): @user_script:1: -READONLY You can't write against a read only replica.": true,

		"WRONGTYPE Operation against a key holding the wrong kind of value":                false,
		"ERR unknown command 'EVALSHA'":                                                    false,
		"ERR user_script:11: too many results to unpack script: cac5, on @user_script:11.": false,
		"CROSSSLOT Keys in request don't hash to the same slot":                            false,
	} {
		// go-redis wraps errors that occur while it connects.
		for _, err := range []error{answeredError(message), fmt.Errorf("connect: %w", answeredError(message))} {
			if got := classify(err) != faultPermanent; got != passing {
				t.Errorf("%q passes: %v, want %v", err, got, passing)
			}
		}
	}
}
