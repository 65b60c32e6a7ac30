//go:build linux

package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// These examples run against a real system with an agent for this host.

// Start a process on a host, wait for the end of the task, and read the outcome.
func Example() {
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

	operate := func(action procfleet.Action) {
		id, err := c.Submit(ctx, client.Submission{Operations: []client.Operation{
			{Action: action, Process: process, Hosts: []procfleet.Host{host}},
		}})
		if err != nil {
			log.Fatal(err)
		}
		if _, err := c.Wait(ctx, id); err != nil {
			log.Fatal(err)
		}
		for result, err := range c.Results(ctx, id, client.Query{}) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Printf("%s %s on %s: %s, running %v\n", result.Action, result.Key, result.Host, result.State, result.Status.Running)
		}
	}
	operate(procfleet.ActionStart)
	operate(procfleet.ActionStart)
	operate(procfleet.ActionKill)
	// Output:
	// start shop:web on 0:127.0.0.1: succeeded, running true
	// start shop:web on 0:127.0.0.1: unchanged, running true
	// kill shop:web on 0:127.0.0.1: succeeded, running false
}

// Watch a task and handle every change.
func ExampleClient_Watch() {
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
	id, err := c.Submit(ctx, client.Submission{Operations: []client.Operation{
		{Action: procfleet.ActionStatus, Process: exampleProcess(), Hosts: []procfleet.Host{host}},
	}})
	if err != nil {
		log.Fatal(err)
	}
	for task, err := range c.Watch(ctx, id) {
		if err != nil {
			log.Fatal(err)
		}
		if task.Done() {
			fmt.Printf("%s: %d of %d\n", task.State, task.Items-task.Counts.Open(), task.Items)
		}
	}
	// Output:
	// finished: 1 of 1
}

// Read only the failed items of a task, for any number of hosts.
func ExampleClient_Results() {
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
	id, err := c.Submit(ctx, client.Submission{Operations: []client.Operation{
		{Action: procfleet.ActionStatus, Process: exampleProcess(), Hosts: hosts},
	}})
	if err != nil {
		log.Fatal(err)
	}
	task, err := c.Wait(ctx, id)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("all went well:", task.Succeeded())
	for result, err := range c.Results(ctx, id, client.Query{}) {
		if err != nil {
			log.Fatal(err)
		}
		if !result.State.Failure() {
			break // failed items are listed first
		}
		fmt.Printf("%s: %s (code %d)\n", result.Host, result.State, result.Code)
	}
	// Output:
	// all went well: false
	// 0:10.99.99.99: unreachable (code 117)
}

// Distinguish an invalid request from a failure that a later retry may avoid.
func ExampleError() {
	c, err := client.New(client.Config{URL: dispatcherURL()})
	if err != nil {
		log.Fatal(err)
	}
	host, err := procfleet.ParseHost("0:127.0.0.1")
	if err != nil {
		log.Fatal(err)
	}
	process := exampleProcess()
	process.Control.Start = ""
	_, err = c.Submit(context.Background(), client.Submission{Operations: []client.Operation{
		{Action: procfleet.ActionStart, Process: process, Hosts: []procfleet.Host{host}},
	}})
	var refusal *client.Error
	if errors.As(err, &refusal) && errors.Is(err, client.ErrInvalid) {
		fmt.Println(refusal.Status, refusal.Field)
	}
	// Output:
	// 400 process.control.start
}
