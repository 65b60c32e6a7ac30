package client_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

func TestCallsAboutATopologySayWhatTheyWereGiven(t *testing.T) {
	t.Parallel()
	two, acme, four, yes := client.Business{ID: 2}, client.Business{ID: 2, Account: "a&b"}, int64(4), true
	for name, test := range map[string]struct {
		call  func(ctx context.Context, c *client.Client) (int64, error)
		asked string
	}{
		"read": {func(ctx context.Context, c *client.Client) (int64, error) {
			found, err := c.Topology(ctx, two)
			if len(found.Sets) != 1 || found.Sets[0].Modules[0].Hosts[0] != hostNumber(1) || found.WithoutAgent[0] != hostNumber(1) || found.WithoutModule != nil {
				t.Errorf("read %+v", found)
			}
			return found.Version, err
		}, "GET /v1/topology/2 "},
		"read without agents": {func(ctx context.Context, c *client.Client) (int64, error) {
			found, err := c.BareTopology(ctx, acme)
			return found.Version, err
		}, "GET /v1/topology/2?account=a%26b&agents=false "},
		"put back": {func(ctx context.Context, c *client.Client) (int64, error) {
			return c.SetTopology(ctx, two, client.Topology{Version: 4, WithoutAgent: []procfleet.Host{hostNumber(1)}})
		}, `PUT /v1/topology/2 application/json {"version":4,"auto_register":false,"sets":[],"without_agent":null,"without_module":null}`},
		"a file": {func(ctx context.Context, c *client.Client) (int64, error) {
			return c.ReplaceTopology(ctx, acme, client.TopologyText{Text: []byte("set,module,host\n"), Type: "text/csv", Version: &four, AutoRegister: &yes})
		}, "PUT /v1/topology/2?account=a%26b&auto_register=true \"4\" text/csv set,module,host\n"},
		"a module": {func(ctx context.Context, c *client.Client) (int64, error) {
			return c.SetModuleHosts(ctx, two, "s1", "web", nil)
		}, `PATCH /v1/topology/2 application/json {"set":"s1","module":"web","hosts":[]}`},
		"auto register": {func(ctx context.Context, c *client.Client) (int64, error) {
			return c.SetAutoRegister(ctx, two, true)
		}, `PATCH /v1/topology/2 application/json {"auto_register":true}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(n *network) {
				var got string
				n.serve("a", func(w http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body)
					if err != nil {
						n.Error(err)
					}
					parts := []string{r.Method, r.URL.RequestURI(), r.Header.Get("If-Match"), r.Header.Get("Content-Type"), string(body)}
					if r.Method == http.MethodGet {
						parts = []string{r.Method, r.URL.RequestURI(), ""}
					} else if parts[2] == "" {
						parts = append(parts[:2], parts[3:]...)
					}
					got = strings.Join(parts, " ")
					answer(w, http.StatusOK, `{"version":4,"sets":[{"name":"s1","modules":[{"name":"web","hosts":["0:10.0.0.1"]}]}],"without_agent":["0:10.0.0.1"],"without_module":null}`)
				})
				version, err := test.call(n.Context(), n.client(client.Config{}))
				if diff := cmp.Diff(test.asked, got); diff != "" || version != 4 || err != nil {
					n.Errorf("version %d, %v\n%s", version, err, diff)
				}
			})
		})
	}
}

func TestAVersionThatIsNotThereIsTold(t *testing.T) {
	t.Parallel()
	inBubble(t, func(n *network) {
		n.serve("a", func(w http.ResponseWriter, _ *http.Request) {
			answer(w, http.StatusConflict, `{"error":{"code":"conflict","message":"version: the topology has version 5 now, not 4: read it again","field":"version"}}`)
		})
		_, err := n.client(client.Config{}).SetTopology(n.Context(), client.Business{ID: 2}, client.Topology{Version: 4})
		if !errors.Is(err, client.ErrVersion) || errors.Is(err, client.ErrConflict) {
			n.Errorf("%v", err)
		}
	})
}
