//go:build linux

package fleet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/procfleet/procfleet/internal/testenv"
)

// Configuration files in a node's folder.
const (
	natsFile     = "nats.conf"
	redisFile    = "redis.conf"
	usersFile    = "users.acl"
	sentinelFile = "sentinel.conf"
)

// configure writes the configuration of a node: a file of deploy/ with addresses,
// passwords and certificates filled in.
func (f *Fleet) configure(n *Node) error {
	switch n.Kind {
	case NATS:
		return f.write(n, natsFile, func() (string, error) { return f.natsConfig(n) })
	case Leaf:
		return f.write(n, natsFile, f.leafConfig)
	case Redis:
		return errors.Join(
			f.write(n, redisFile, func() (string, error) { return f.redisConfig(n) }),
			f.write(n, usersFile, f.redisUsers))
	case Sentinel:
		return f.write(n, sentinelFile, f.sentinelConfig)
	default:
		return nil
	}
}

// write writes a file into a node's folder.
func (f *Fleet) write(n *Node, name string, text func() (string, error)) error {
	t, err := text()
	if err != nil {
		return err
	}
	return os.WriteFile(f.path(n.Name, "data", name), []byte(t), 0o666)
}

// edit replaces a text of a file of deploy/.
type edit struct{ old, new string }

// deployed returns a file of deploy/ after the edits. It fails if the file does not
// contain the old text of an edit.
func deployed(name string, edits ...edit) (string, error) {
	data, err := os.ReadFile(filepath.Join(testenv.ModuleRoot(), "deploy", name))
	if err != nil {
		return "", err
	}
	text := string(data)
	for _, e := range edits {
		if !strings.Contains(text, e.old) {
			return "", fmt.Errorf("deploy/%s: %q not found", name, e.old)
		}
		text = strings.ReplaceAll(text, e.old, e.new)
	}
	return text, nil
}

// natsTLS is the TLS section of each listener and of each connection to another
// server.
const natsTLS = `tls { cert_file: "/data/` + certFile + `", key_file: "/data/` + privateFile + `", ca_file: "/data/` + caFile + `" }
`

func (f *Fleet) natsConfig(n *Node) (string, error) {
	edits := []edit{
		{"server_name: procfleet-1", "server_name: " + n.Name},
		{"http: 127.0.0.1:8222", "http: 0.0.0.0:8222"}, // requests come from outside of the container
		{"/var/lib/nats", "/data/nats"},
	}
	example := 2
	for _, other := range f.Nodes(NATS) {
		if other != n {
			edits = append(edits, edit{fmt.Sprintf("nats-%d.example", example), other.IP})
			example++
		}
	}
	edits = append(edits,
		edit{"listen: 0.0.0.0:6222", "listen: 0.0.0.0:6222\n  " + natsTLS},
		edit{"listen: 0.0.0.0:7422", "listen: 0.0.0.0:7422\n  " + natsTLS},
	)
	text, err := deployed("nats-cluster.conf", edits...)
	return text + natsTLS, err
}

// accountPreloaded is a line of broker.conf.
var accountPreloaded = regexp.MustCompile(`(?m)^  (A\w+): `)

func (f *Fleet) leafConfig() (string, error) {
	broker, err := os.ReadFile(f.path(keysDir, "nats-auth/broker.conf"))
	if err != nil {
		return "", err
	}
	accounts := accountPreloaded.FindAllSubmatch(broker, -1)
	if len(accounts) == 0 {
		return "", fmt.Errorf("no account in %q", broker)
	}
	edits := []edit{
		{"server_name: area-3", "server_name: leaf\nhttp: 0.0.0.0:8222"}, // requests come from outside of the container
		{"/var/lib/nats", "/data/nats"},
		// The account is the last one, as the file says.
		{"account: ACCOUNT", "account: " + string(accounts[len(accounts)-1][1]) + "\n" + natsTLS},
		{"/etc/nats/area-3.creds", "/data/" + leafCreds},
	}
	for i, n := range f.Nodes(NATS) {
		edits = append(edits, edit{fmt.Sprintf("nats-%d.example", i+1), n.IP})
	}
	text, err := deployed("nats-leaf.conf", edits...)
	return text + natsTLS, err
}

// masterName is the Sentinels' name of the Redis master.
const masterName = "fleet"

// redisTLS makes a Redis server or a Sentinel accept only TLS with client
// certificates.
func redisTLS(port string) string {
	return fmt.Sprintf(`port 0
tls-port %s
tls-cert-file /data/%s
tls-key-file /data/%s
tls-ca-cert-file /data/%s
tls-replication yes
`, port, certFile, privateFile, caFile)
}

func (f *Fleet) redisConfig(n *Node) (string, error) {
	text, err := deployed("redis.conf",
		edit{"port 6379\n", redisTLS(redisPort)},
		edit{"maxmemory 4gb", "maxmemory 512mb"},
		edit{"# aclfile /etc/redis/users.acl", "aclfile /data/" + usersFile + "\nmasteruser replica\nmasterauth " + f.secret},
	)
	first := f.Nodes(Redis)[0]
	switch {
	case f.cfg.RedisCluster:
		text += "tls-cluster yes\ncluster-enabled yes\ncluster-node-timeout 3000\n"
	case n != first:
		text += "replicaof " + first.IP + " " + redisPort + "\n"
	}
	return text, err
}

// redisUsers returns the ACL file of the Redis users, which all have the same
// password.
func (f *Fleet) redisUsers() (string, error) {
	var edits []edit
	for _, user := range []string{"dispatcher", "worker", "replica", "sentinel", redisOperator} {
		edits = append(edits, edit{"user " + user + " on", "user " + user + " on >" + f.secret})
	}
	if f.cfg.RedisCluster { // as in docs/how-to/create-redis-users.md
		edits = append(edits, edit{" +script|load\n", " +script|load +cluster|slots\n"})
	}
	return deployed("redis-users.acl", edits...)
}

func (f *Fleet) sentinelConfig() (string, error) {
	return deployed("redis-sentinel.conf",
		edit{"port 26379\n", redisTLS(sentinelPort)},
		edit{"10.0.0.4 6379", f.Nodes(Redis)[0].IP + " " + redisPort},
		edit{"PASSWORD", f.secret},
	)
}
