//go:build linux

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Settled waits until the whole fleet works: every /readyz responds 200, the
// streams have their replicas, the Sentinels agree on a master with its replica,
// and a dispatcher lists every host. It fails at once if a node is [Node.Faulty].
// When ctx ends, the error names the missing condition.
func (f *Fleet) Settled(ctx context.Context) error {
	for _, n := range f.nodes {
		if n.Faulty() {
			return fmt.Errorf("%s has an active fault", n)
		}
	}
	err := until(ctx, func() error {
		return errors.Join(f.each(f.nodes, func(n *Node) error { return f.ready(ctx, n) }), f.knowsHosts(ctx))
	})
	if err != nil {
		return fmt.Errorf("the fleet is not settled: %w", err)
	}
	return nil
}

// until calls check once a second until it succeeds. When ctx ends, it returns the
// last error of check.
func until(ctx context.Context, check func() error) error {
	var err error
	for {
		switch now := check(); {
		case now == nil:
			return nil
		case err == nil || ctx.Err() == nil: // otherwise check failed because ctx ended
			err = now
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Second):
		}
	}
}

func (f *Fleet) ready(ctx context.Context, n *Node) error {
	switch n.Kind {
	case Dispatcher:
		return answersOK(ctx, "http://"+n.IP+":8080/readyz")
	case Worker, Agent:
		return answersOK(ctx, "http://"+n.IP+":9090/readyz")
	case NATS, Leaf:
		return answersOK(ctx, "http://"+n.IP+":8222/healthz")
	case Redis:
		if f.cfg.RedisCluster {
			return f.clustered(ctx, n)
		}
		return f.replicated(ctx, n)
	case Sentinel:
		return f.agrees(ctx, n)
	case Light:
		return n.listening(ctx)
	default:
		panic("no such kind of node: " + string(n.Kind))
	}
}

// Master returns the Redis master according to the first Sentinel that responds. In
// a Redis Cluster it returns the first master that responds.
func (f *Fleet) Master(ctx context.Context) (*Node, error) {
	var failed []error
	if f.cfg.RedisCluster {
		for _, n := range f.Nodes(Redis) {
			info, err := f.redis(ctx, n, "INFO", "replication")
			if err == nil && strings.Contains(info, "role:master") {
				return n, nil
			}
			failed = append(failed, err)
		}
	}
	for _, s := range f.Nodes(Sentinel) {
		n, err := f.masterBy(ctx, s)
		if err == nil {
			return n, nil
		}
		failed = append(failed, err)
	}
	return nil, errors.Join(failed...)
}

func (f *Fleet) masterBy(ctx context.Context, sentinel *Node) (*Node, error) {
	out, err := f.redis(ctx, sentinel, "SENTINEL", "get-master-addr-by-name", masterName)
	if err != nil {
		return nil, err
	}
	ip, _, _ := strings.Cut(out, "\n")
	for _, n := range f.Nodes(Redis) {
		if n.IP == ip {
			return n, nil
		}
	}
	return nil, fmt.Errorf("%s names the unknown master %q", sentinel, out)
}

// agrees reports whether a Sentinel and the first Sentinel name the same master.
func (f *Fleet) agrees(ctx context.Context, sentinel *Node) error {
	mine, err := f.masterBy(ctx, sentinel)
	if err != nil {
		return err
	}
	master, err := f.Master(ctx)
	if err != nil {
		return err
	}
	if mine != master {
		return fmt.Errorf("%s names the master %s, the first Sentinel %s", sentinel, mine, master)
	}
	return nil
}

// replicated reports whether a Redis server is the master and has its replica, or
// is a connected replica.
func (f *Fleet) replicated(ctx context.Context, n *Node) error {
	master, err := f.Master(ctx)
	if err != nil {
		return err
	}
	info, err := f.redis(ctx, n, "INFO", "replication")
	if err != nil {
		return err
	}
	want := []string{"role:slave", "master_link_status:up", "master_sync_in_progress:0"}
	if n == master {
		want = []string{"role:master", fmt.Sprintf("connected_slaves:%d", f.cfg.RedisReplicas), "state=online"}
	}
	for _, w := range want {
		if !strings.Contains(info, w) {
			return fmt.Errorf("%s: no %q in its replication state", n, w)
		}
	}
	return nil
}

// Replicated waits until every Redis replica has received all current data of its
// master.
func (f *Fleet) Replicated(ctx context.Context) error {
	master, err := f.Master(ctx)
	if err != nil {
		return err
	}
	want, err := f.offset(ctx, master, "master_repl_offset")
	if err != nil {
		return err
	}
	for _, n := range f.Nodes(Redis) {
		if n == master {
			continue
		}
		err := until(ctx, func() error {
			have, err := f.offset(ctx, n, "slave_repl_offset")
			if err == nil && have < want {
				err = fmt.Errorf("%s has received %d of %d bytes", n, have, want)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// offset returns the replication offset of a Redis server.
func (f *Fleet) offset(ctx context.Context, n *Node, field string) (int, error) {
	info, err := f.redis(ctx, n, "INFO", "replication")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(info, field+":")
	number, _, _ := strings.Cut(rest, "\n")
	return strconv.Atoi(strings.TrimSpace(number))
}

// clustered reports whether a node of a Redis Cluster considers the cluster
// complete, and has or is a replica.
func (f *Fleet) clustered(ctx context.Context, n *Node) error {
	state, err := f.redis(ctx, n, "CLUSTER", "INFO")
	if err != nil {
		return err
	}
	info, err := f.redis(ctx, n, "INFO", "replication")
	if err != nil {
		return err
	}
	switch {
	case !strings.Contains(state, "cluster_state:ok"):
		return fmt.Errorf("%s considers the cluster incomplete", n)
	case strings.Contains(info, "role:master") && strings.Contains(info, "state=online"),
		strings.Contains(info, "master_link_status:up"):
		return nil
	default:
		return fmt.Errorf("%s has no replica and is none", n)
	}
}

// listening reports whether all simulated agents of a node listen.
func (n *Node) listening(ctx context.Context) error {
	logs, err := run(ctx, "docker", "logs", n.container())
	if err != nil {
		return err
	}
	if !strings.Contains(logs, "ready ") {
		return fmt.Errorf("%s is not ready", n)
	}
	return nil
}

// knowsHosts reports whether a dispatcher lists every host, except those of
// simulated agents.
func (f *Fleet) knowsHosts(ctx context.Context) error {
	announced := map[string]bool{}
	for next := ""; ; {
		var page struct {
			Hosts []struct{ Host string }
			Next  string
		}
		if err := getJSON(ctx, f.Dispatchers()[0]+"/v1/hosts?limit=1000&after="+url.QueryEscape(next), &page); err != nil {
			return err
		}
		for _, h := range page.Hosts {
			announced[h.Host] = true
		}
		if next = page.Next; next == "" {
			break
		}
	}
	for _, n := range f.Nodes(Agent) {
		if !announced[n.Host] {
			return fmt.Errorf("%s (%s) is not listed", n, n.Host)
		}
	}
	return nil
}

// StreamLeader returns the NATS server that leads a stream.
func (f *Fleet) StreamLeader(ctx context.Context, stream string) (*Node, error) {
	var failed []error
	for _, n := range f.Nodes(NATS) {
		leader, err := streamLeader(ctx, n, stream)
		if err == nil {
			return f.Node(leader), nil
		}
		failed = append(failed, err)
	}
	return nil, errors.Join(failed...)
}

func streamLeader(ctx context.Context, n *Node, stream string) (string, error) {
	var jsz struct {
		Accounts []struct {
			Streams []struct {
				Name    string
				Cluster struct{ Leader string }
			} `json:"stream_detail"`
		} `json:"account_details"`
	}
	if err := getJSON(ctx, "http://"+n.IP+":8222/jsz?streams=true", &jsz); err != nil {
		return "", err
	}
	for _, a := range jsz.Accounts {
		for _, s := range a.Streams {
			if s.Name == stream && s.Cluster.Leader != "" {
				return s.Cluster.Leader, nil
			}
		}
	}
	return "", fmt.Errorf("%s: no leader of %s", n, stream)
}

const (
	redisPort    = "6379"
	sentinelPort = "26379"
	// redisOperator is the Redis user of the operator.
	redisOperator = "operator"
)

// redis runs a command on a Redis server or a Sentinel.
func (f *Fleet) redis(ctx context.Context, n *Node, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	where := []string{"-e", "-h", n.IP, "-p", redisPort}
	if n.Kind == Sentinel { // a Sentinel has no users
		where[4] = sentinelPort
		return run(ctx, "redis-cli", slices.Concat(where, f.redisTLSFlags(n), args)...)
	}
	return run(ctx, "redis-cli", slices.Concat(where, f.redisTLSFlags(n), f.redisUserFlags(), args)...)
}

// redisTLSFlags returns the flags of redis-cli for TLS with the node's certificate.
func (f *Fleet) redisTLSFlags(n *Node) []string {
	return []string{"--tls", "--cacert", f.ca.File, "--cert", f.certs[n].Cert, "--key", f.certs[n].Key}
}

// redisUserFlags returns the flags of redis-cli for the operator's user.
func (f *Fleet) redisUserFlags() []string {
	return []string{"--user", redisOperator, "--pass", f.secret, "--no-auth-warning"}
}

// askTimeout limits one request to a node.
const askTimeout = 5 * time.Second

func answersOK(ctx context.Context, url string) error {
	body, err := get(ctx, url)
	if err != nil {
		return fmt.Errorf("%s: %w: %s", url, err, strings.TrimSpace(string(body)))
	}
	return nil
}

func getJSON(ctx context.Context, url string, into any) error {
	body, err := get(ctx, url)
	if err != nil {
		return fmt.Errorf("%s: %w", url, err)
	}
	return json.Unmarshal(body, into)
}

// client reuses no connections, because nodes are killed and started.
var client = &http.Client{Timeout: askTimeout, Transport: &http.Transport{DisableKeepAlives: true}}

func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return body, errors.New(resp.Status)
	}
	return body, nil
}
