package deploy_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/procfleet/procfleet/internal/testenv"
)

// startRedis starts redis-server with a file of this folder in which the
// pairs of old and new text were replaced, and returns its address.
func startRedis(t *testing.T, file string, args []string, oldnew ...string) string {
	t.Helper()
	testenv.Need(t, "redis-server", "apt-get install redis-server")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(oldnew); i += 2 {
		if !strings.Contains(string(text), oldnew[i]) {
			t.Fatalf("%s does not say %q", file, oldnew[i])
		}
	}
	conf := filepath.Join(t.TempDir(), file)
	if err := os.WriteFile(conf, []byte(strings.NewReplacer(oldnew...).Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(testenv.FreePort(t))
	args = append([]string{conf, "--bind", "127.0.0.1", "--port", port}, args...)
	addr := net.JoinHostPort("127.0.0.1", port)
	testenv.StartChild(t, nil, "redis-server", args...)
	testenv.Eventually(t, time.Minute, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	}, file+" starts a server")
	return addr
}

// withPasswords returns the file of users with a password for each, which is
// its name.
func withPasswords(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("redis-users.acl")
	if err != nil {
		t.Fatal(err)
	}
	users := string(text)
	for _, name := range []string{"procfleet", "replica", "sentinel"} {
		users = strings.Replace(users, "user "+name+" on", "user "+name+" on >"+name, 1)
	}
	file := filepath.Join(t.TempDir(), "users.acl")
	if err := os.WriteFile(file, []byte(users), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func client(t *testing.T, addr, user string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, Username: user, Password: user})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestUsersSufficeForReplicasAndSentinel starts a master, a replica and a
// Sentinel with the files of this folder, and has the Sentinel put the replica
// in the master's place.
func TestUsersSufficeForReplicasAndSentinel(t *testing.T) {
	t.Parallel()
	withUsers := []string{"--masteruser", "replica", "--masterauth", "replica"}
	useACL := "aclfile " + withPasswords(t)
	start := func(more ...string) string {
		return startRedis(t, "redis.conf", append(more, withUsers...), "dir /data", "dir "+t.TempDir(), "# aclfile /etc/redis/users.acl", useACL)
	}
	master := start()
	replica := start("--replicaof", strings.Replace(master, ":", " ", 1))
	has := func(addr, part string) func() bool {
		c := client(t, addr, "procfleet")
		return func() bool {
			info, err := c.Info(t.Context()).Result()
			return err == nil && strings.Contains(info, part)
		}
	}
	testenv.Eventually(t, time.Minute, has(master, "state=online"), "the replica follows")
	if !has(master, "maxmemory_policy:noeviction")() {
		t.Error("redis.conf lets Redis evict tasks")
	}
	if err := client(t, master, "").Ping(t.Context()).Err(); err == nil {
		t.Error("Redis takes commands of who has no user")
	}

	monitor := strings.Replace(master, ":", " ", 1)
	sentinel := startRedis(t, "redis-sentinel.conf", []string{"--sentinel"},
		"10.0.0.4 6379", monitor, "PASSWORD", "sentinel")
	asked := client(t, sentinel, "")
	testenv.Eventually(t, time.Minute, func() bool {
		info, err := asked.Info(t.Context(), "sentinel").Result()
		return err == nil && strings.Contains(info, "status=ok,address="+master+",slaves=1")
	}, "Sentinel sees the master and its replica")
	testenv.Eventually(t, time.Minute, func() bool {
		return asked.Do(t.Context(), "SENTINEL", "FAILOVER", "fleet").Err() == nil
	}, "Sentinel begins a fail-over")
	testenv.Eventually(t, time.Minute, has(replica, "role:master"), "the replica takes over")
	testenv.Eventually(t, time.Minute, has(master, fmt.Sprintf("master_port:%s", replica[strings.LastIndexByte(replica, ':')+1:])), "the old master follows the new one")
}
