//go:build linux

package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"

	"github.com/procfleet/procfleet/internal/fleetkey"
)

// layOut makes the networks and says where each node is.
func (f *Fleet) layOut(ctx context.Context) error {
	if err := fleetkey.Create(f.path(keyFile)); err != nil {
		return err
	}
	near, err := f.network(ctx, "near")
	if err != nil {
		return err
	}
	f.near = f.name + "-near"
	far, err := f.network(ctx, "far")
	if err != nil {
		return err
	}
	f.far = f.name + "-far"

	add := func(kind Kind, count, first int) {
		for i := range count {
			f.add(fmt.Sprintf("%s-%d", kind, i+1), kind, port{f.near, fmt.Sprintf("%s.%d", near, first+i)})
		}
	}
	add(NATS, natsServers, 11)
	f.add("leaf", Leaf, port{f.near, near + ".19"}, port{f.far, far + ".19"})
	if f.cfg.RedisCluster {
		add(Redis, clusterNodes, 21)
	} else {
		add(Redis, redisServers, 21)
		add(Sentinel, sentinels, 31)
	}
	add(Dispatcher, dispatchers, 41)
	add(Worker, workers, 51)
	for i := range 2 * agentsPerArea {
		at, area := port{f.near, fmt.Sprintf("%s.%d", near, 101+i)}, 0
		if i >= agentsPerArea {
			at, area = port{f.far, fmt.Sprintf("%s.%d", far, 101+i)}, FarArea
		}
		n := f.add(fmt.Sprintf("agent-%d", i+1), Agent, at)
		n.Host = fmt.Sprintf("%d:%s", area, at.ip)
		n.marks = f.path(n.Name, "marks")
		if err := os.MkdirAll(n.marks, 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fleet) add(name string, kind Kind, ports ...port) *Node {
	n := &Node{Name: name, Kind: kind, IP: ports[0].ip, fleet: f, ports: ports}
	f.nodes = append(f.nodes, n)
	return n
}

// network makes a network with addresses that nobody on this machine has, and
// returns the first three numbers of them.
func (f *Fleet) network(ctx context.Context, name string) (prefix string, err error) {
	for range 20 {
		prefix = fmt.Sprintf("10.%d.%d", 200+rand.N(50), rand.N(250))
		if _, err = run(ctx, "docker", "network", "create", "--subnet", prefix+".0/24", f.name+"-"+name); err == nil {
			return prefix, nil
		}
	}
	return "", err
}

// run makes and starts a node's container. Its /data is a folder of this
// machine, so that it survives whatever happens to the container.
func (f *Fleet) run(ctx context.Context, n *Node) error {
	data := f.path(n.Name, "data")
	if err := os.MkdirAll(data, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(data, 0o777); err != nil { // the server's image has a user of its own
		return err
	}
	args := []string{
		"create", "--name", n.container(), "--hostname", n.Name, "--restart", "no", "--stop-timeout", "40",
		"--network", n.ports[0].network, "--ip", n.ports[0].ip, "--volume", data + ":/data",
		"--cap-add", "NET_ADMIN", "--log-opt", "max-size=20m",
	}
	if n.Kind == Agent {
		args = append(args, "--init", "--volume", n.marks+":"+MarkFolder)
	}
	if err := f.giveKeys(n, data); err != nil {
		return err
	}
	image, command, err := f.command(n, data)
	if err != nil {
		return err
	}
	if _, err := run(ctx, "docker", append(append(args, image), command...)...); err != nil {
		return err
	}
	for _, p := range n.ports[1:] {
		if _, err := run(ctx, "docker", "network", "connect", "--ip", p.ip, p.network, n.container()); err != nil {
			return err
		}
	}
	_, err = run(ctx, "docker", "start", n.container())
	return err
}

// Files of keys in a node's folder.
const (
	keyFile      = "fleet.key"
	identityFile = "identity.yaml"
)

// serverUser is the user of the server's image.
const serverUser = 65532

// giveKeys writes the keys that a node has: dispatchers and workers those of
// the fleet, an agent its own.
func (f *Fleet) giveKeys(n *Node, data string) error {
	switch n.Kind {
	case Dispatcher, Worker:
		keys, err := os.ReadFile(f.path(keyFile))
		if err != nil {
			return err
		}
		file := data + "/" + keyFile
		if err := os.WriteFile(file, keys, 0o600); err != nil {
			return err
		}
		return os.Chown(file, serverUser, serverUser)
	case Agent:
		ring, err := fleetkey.ReadRing(f.path(keyFile))
		if err != nil {
			return err
		}
		text, err := (&fleetkey.Identity{Host: ring.Host(n.Host)}).Text()
		if err != nil {
			return err
		}
		return os.WriteFile(data+"/"+identityFile, text, 0o600)
	default:
		return nil
	}
}

// command is what a node runs: an image, and what follows its name.
func (f *Fleet) command(n *Node, data string) (image string, command []string, err error) {
	write := func(name, text string) {
		if err == nil {
			err = os.WriteFile(data+"/"+name, []byte(text), 0o666)
		}
	}
	switch n.Kind {
	case NATS:
		write("nats.conf", f.natsConfig(n))
		return f.cfg.Images.NATS, []string{"--config", "/data/nats.conf"}, err
	case Leaf:
		write("nats.conf", f.leafConfig())
		return f.cfg.Images.NATS, []string{"--config", "/data/nats.conf"}, err
	case Redis:
		write("redis.conf", f.redisConfig(n))
		return f.cfg.Images.Redis, []string{"redis-server", "/data/redis.conf"}, err
	case Sentinel:
		write("sentinel.conf", f.sentinelConfig())
		return f.cfg.Images.Redis, []string{"redis-server", "/data/sentinel.conf", "--sentinel"}, err
	case Dispatcher:
		return f.cfg.Images.Server, append([]string{"dispatcher", "--http=0.0.0.0:8080", "--allow-unauthenticated"}, f.backends()...), nil
	case Worker:
		return f.cfg.Images.Server, append([]string{"worker", "--status-http=0.0.0.0:9090"}, f.backends()...), nil
	case Agent:
		return f.cfg.Images.Agent, []string{
			"--nats=" + strings.Join(f.natsOf(n), ","), "--identity=/data/" + identityFile,
			"--data=/data/agent", "--status-http=0.0.0.0:9090",
		}, nil
	default:
		panic("no such kind of node: " + string(n.Kind))
	}
}

// backends are the flags that dispatchers and workers have in common.
func (f *Fleet) backends() []string {
	return []string{
		"--nats=" + strings.Join(f.NATSURLs(), ","), "--stream-replicas=" + fmt.Sprint(natsServers),
		"--fleet-key=/data/" + keyFile, "--redis=" + f.redisURL(), "--redis-wait-replicas=" + fmt.Sprint(f.cfg.WaitReplicas),
	}
}

func (f *Fleet) redisURL() string {
	doors, port, how := f.Nodes(Sentinel), "26379", "/0?master_name="+masterName
	if f.cfg.RedisCluster {
		doors, port, how = f.Nodes(Redis), redisPort, "?cluster=true"
	}
	all := addresses(doors, port)
	return "redis://" + all[0] + how + "&addr=" + strings.Join(all[1:], "&addr=")
}

func addresses(nodes []*Node, port string) []string {
	var all []string
	for _, n := range nodes {
		all = append(all, n.IP+":"+port)
	}
	return all
}

// natsOf are the NATS servers that an agent knows.
func (f *Fleet) natsOf(agent *Node) []string {
	if agent.ports[0].network == f.near {
		return f.NATSURLs()
	}
	return []string{"nats://" + f.Node("leaf").ports[1].ip + ":4222"}
}

func (f *Fleet) natsConfig(n *Node) string {
	var routes []string
	for _, other := range f.Nodes(NATS) {
		routes = append(routes, fmt.Sprintf("%q", "nats://"+other.IP+":6222"))
	}
	return fmt.Sprintf(`server_name: %s
listen: 0.0.0.0:4222
http: 0.0.0.0:8222
jetstream { store_dir: /data/jetstream, max_memory_store: 64MiB, max_file_store: 16GiB }
max_payload: 1MiB
ping_interval: 20s
ping_max: 2
cluster { name: procfleet, listen: 0.0.0.0:6222, routes: [%s] }
leafnodes { listen: 0.0.0.0:7422 }
`, n.Name, strings.Join(routes, ", "))
}

func (f *Fleet) leafConfig() string {
	var middle []string
	for _, n := range f.Nodes(NATS) {
		middle = append(middle, fmt.Sprintf("%q", "nats-leaf://"+n.IP+":7422"))
	}
	return fmt.Sprintf(`server_name: leaf
listen: 0.0.0.0:4222
http: 0.0.0.0:8222
max_payload: 1MiB
ping_interval: 20s
ping_max: 2
leafnodes { remotes: [{ urls: [%s] }] }
`, strings.Join(middle, ", "))
}

// masterName is how the Sentinels call the Redis that counts.
const masterName = "procfleet"

func (f *Fleet) redisConfig(n *Node) string {
	text := `dir /data
port 6379
bind 0.0.0.0
protected-mode no
maxmemory 512mb
maxmemory-policy noeviction
appendonly yes
appendfsync everysec
`
	first := f.Nodes(Redis)[0]
	switch {
	case f.cfg.RedisCluster:
		text += "cluster-enabled yes\ncluster-node-timeout 3000\n"
	case n != first:
		text += "replicaof " + first.IP + " 6379\n"
	}
	return text
}

func (f *Fleet) sentinelConfig() string {
	return fmt.Sprintf(`dir /data
port 26379
bind 0.0.0.0
protected-mode no
sentinel monitor %[1]s %[2]s 6379 2
sentinel down-after-milliseconds %[1]s 3000
sentinel failover-timeout %[1]s 10000
`, masterName, f.Nodes(Redis)[0].IP)
}

// joinCluster makes one cluster of the Redis servers, when all answer.
func (f *Fleet) joinCluster(ctx context.Context) error {
	args := []string{"--cluster", "create"}
	for _, n := range f.Nodes(Redis) {
		if err := until(ctx, func() error { _, err := redis(ctx, n.IP, redisPort, "PING"); return err }); err != nil {
			return fmt.Errorf("%s does not answer: %w", n, err)
		}
		args = append(args, n.IP+":"+redisPort)
	}
	_, err := run(ctx, "redis-cli", append(args, "--cluster-replicas", "1", "--cluster-yes")...)
	return err
}
