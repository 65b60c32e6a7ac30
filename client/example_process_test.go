//go:build linux

package client_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// Register the spec of a process, and operate the process by its name on all hosts where it
// is registered.
func ExampleClient_Register() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c, err := client.New(client.Config{URL: dispatcherURL()}) // for example http://127.0.0.1:8080
	if err != nil {
		log.Fatal(err)
	}
	host, err := procfleet.ParseHost("0:127.0.0.1")
	if err != nil {
		log.Fatal(err)
	}
	process := exampleProcess() // a procfleet.ProcessSpec, begun with procfleet.DefaultSpec
	process.Namespace = "registered"
	on := client.Targets{Hosts: []procfleet.Host{host}}

	outcomes, err := c.Register(ctx, process, on)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("registered on %s: %s\n", outcomes[0].Host, outcomes[0].Message)

	operate := func(action procfleet.Action) {
		name := procfleet.ProcessSpec{Namespace: "registered", Name: "web"}
		id, err := c.Submit(ctx, client.Submission{Operations: []client.Operation{
			{Action: action, Process: name, Registered: true},
		}})
		if err != nil {
			log.Fatal(err)
		}
		task, err := c.Wait(ctx, id)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s on %d host: %v\n", action, task.Items, task.Succeeded())
	}
	operate(procfleet.ActionStart)
	operate(procfleet.ActionKill)

	if _, err := c.Unregister(ctx, "registered", "web", on); err != nil {
		log.Fatal(err)
	}
	// Output:
	// registered on 0:127.0.0.1: success
	// start on 1 host: true
	// kill on 1 host: true
}

// List the registered processes of a namespace, with the states that their agents last
// reported.
func ExampleClient_Processes() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c, err := client.New(client.Config{URL: dispatcherURL()})
	if err != nil {
		log.Fatal(err)
	}
	var hosts []procfleet.Host
	for _, name := range []string{"0:127.0.0.1", "0:10.99.99.99"} { // the second has no agent
		host, err := procfleet.ParseHost(name)
		if err != nil {
			log.Fatal(err)
		}
		hosts = append(hosts, host)
	}
	process := exampleProcess()
	process.Namespace = "listed"
	if _, err := c.Register(ctx, process, client.Targets{Hosts: hosts}); err != nil {
		log.Fatal(err)
	}
	for p, err := range c.Processes(ctx, "listed", client.Query{}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s on %s: registered as %s, reported %v, agent alive %v\n",
			p.Name, p.Host, p.Registration.Process.ProcName, p.Reported != nil, p.Alive)
	}
	// Output:
	// web on 0:10.99.99.99: registered as sleep, reported false, agent alive false
	// web on 0:127.0.0.1: registered as sleep, reported false, agent alive true
}

// Limit the share of a host that the processes of a namespace use together.
func ExampleClient_SetGroups() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c, err := client.New(client.Config{URL: dispatcherURL()})
	if err != nil {
		log.Fatal(err)
	}
	host, err := procfleet.ParseHost("0:127.0.0.1")
	if err != nil {
		log.Fatal(err)
	}
	on := client.Targets{Hosts: []procfleet.Host{host}}
	groups := client.Grouping{Namespace: "shop", Groups: []client.Group{{ID: "cache", CPULimit: 50, MemoryLimit: 30}}}
	if _, err := c.SetGroups(ctx, groups, on); err != nil {
		log.Fatal(err)
	}
	found, err := c.GroupsOn(ctx, "shop", on)
	if err != nil {
		log.Fatal(err)
	}
	for _, group := range found[0].Groups {
		fmt.Printf("%s: group %s may use %v%% of the CPU\n", found[0].Host, group.ID, group.CPULimit)
	}
	// Output:
	// 0:127.0.0.1: group cache may use 50% of the CPU
}

// Query which of the given hosts have a live agent.
func ExampleClient_AgentsOn() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c, err := client.New(client.Config{URL: dispatcherURL()})
	if err != nil {
		log.Fatal(err)
	}
	host, err := procfleet.ParseHost("0:127.0.0.1")
	if err != nil {
		log.Fatal(err)
	}
	found, err := c.AgentsOn(ctx, client.Targets{Hosts: []procfleet.Host{host}, Agents: []string{"nobody"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(found[0].Host, "runs", found[0].Agent.OS)
	fmt.Println(found[1].AgentID, "is alive:", found[1].Agent != nil)
	// Output:
	// 0:127.0.0.1 runs linux
	// nobody is alive: false
}

// Bind an id of the caller to a host, to name the host by it.
func ExampleClient_BindAgents() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c, err := client.New(client.Config{URL: dispatcherURL()})
	if err != nil {
		log.Fatal(err)
	}
	host, err := procfleet.ParseHost("0:127.0.0.1")
	if err != nil {
		log.Fatal(err)
	}
	bound, err := c.BindAgents(ctx, []client.Binding{{Host: host, AgentID: "asset-4711"}}, "")
	if err != nil {
		log.Fatal(err)
	}
	found, err := c.AgentsOn(ctx, client.Targets{Agents: []string{"asset-4711"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(bound[0].AgentID, "is bound:", bound[0].Bound, "to", found[0].Host)
	// Output:
	// asset-4711 is bound: true to 0:127.0.0.1
}
