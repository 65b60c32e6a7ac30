package web

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/client"
)

// hostsView is the content of the list of hosts.
type hostsView struct {
	Labels, Business, Modules string
	Conflict, Missing         bool
	NeedsBusiness             bool // the filters are known only for a business
	Hosts                     []client.Agent
	Next                      string
}

func listHosts(ctx context.Context, v *visit) (any, error) {
	view := hostsView{
		Labels: v.query("labels"), Business: v.business(), Modules: v.query("modules"),
		Conflict: v.query("conflict") != "", Missing: v.query("missing") != "",
	}
	if view.NeedsBusiness = view.Business == "" && (view.Missing || view.Modules != ""); view.NeedsBusiness {
		return view, nil
	}
	page, err := v.api.HostPage(ctx, client.HostQuery{
		Query:  client.Query{PageSize: rows, Cursor: v.query("after"), Business: view.Business},
		Labels: words(view.Labels), Modules: words(view.Modules), Conflict: view.Conflict, Missing: view.Missing, Processes: true,
	})
	view.Hosts, view.Next = page.Items, v.nextPage(page.Next)
	return view, err
}

// hostView is the content of the page of a host.
type hostView struct {
	Host      procfleet.Host
	Agent     *client.Agent // nil without a live agent
	Processes processRows
	Freezes   []client.Freeze
	Events    eventList
	Tasks     []client.Task
}

const (
	eventsShown = 20 // on the pages of other things
	tasksShown  = 10
)

// theHost returns the host in the path of the request.
func (v *visit) theHost() (procfleet.Host, error) {
	host, err := parseHost(v.r.PathValue("host"))
	if err != nil {
		return host, &client.Error{Status: http.StatusNotFound, Field: "host", Message: err.Error()}
	}
	return host, nil
}

// on returns the target of calls for a host.
func (v *visit) on(host procfleet.Host) client.Targets {
	return client.Targets{Hosts: []procfleet.Host{host}, Business: v.business()}
}

func showHost(ctx context.Context, v *visit) (any, error) {
	host, err := v.theHost()
	if err != nil {
		return nil, err
	}
	view := hostView{Host: host}
	agents, err := v.api.AgentsOn(ctx, v.on(host))
	if err != nil {
		return nil, err
	}
	view.Agent = agents[0].Agent
	processes, err := v.processesOf(ctx, host)
	if err != nil {
		return nil, err
	}
	view.Processes = newProcessRows(processes)
	if view.Events, err = v.recentEvents(ctx, client.EventQuery{Host: host}, eventsShown); err != nil {
		return nil, err
	}
	if view.Freezes, err = v.freezesOf(ctx, host); err != nil {
		return nil, err
	}
	tasks, err := v.api.TaskPage(ctx, client.TaskQuery{Host: host, Query: client.Query{PageSize: tasksShown}})
	view.Tasks = tasks.Items
	return view, err
}

// processesOf returns the processes in the last report of a host.
func (v *visit) processesOf(ctx context.Context, host procfleet.Host) ([]client.FleetProcess, error) {
	page, err := v.api.FleetPage(ctx, client.FleetQuery{
		Hosts: []procfleet.Host{host}, Drift: true, HostQuery: client.HostQuery{Query: client.Query{PageSize: 1000, Business: v.business()}},
	})
	return page.Items, err
}

// freezesOf returns the freezes that apply to a host, and none if the viewer may not list freezes.
func (v *visit) freezesOf(ctx context.Context, host procfleet.Host) ([]client.Freeze, error) {
	page, err := v.api.FreezePage(ctx, client.Query{})
	if mayNot(err) {
		return nil, nil
	}
	return slices.DeleteFunc(page.Items, func(f client.Freeze) bool { return !f.Host.IsZero() && f.Host != host }), err
}

// eventList has the newest events of a page that also shows other things.
type eventList struct {
	Events  []procfleet.HostEvent // newest first
	Problem string                // why there are no events; "" if there are none
}

// recentEvents returns the newest events that a query selects. NATS has the events: without it, or without
// the permission to list them, the rest of the page is still of use.
func (v *visit) recentEvents(ctx context.Context, q client.EventQuery, most int) (eventList, error) {
	q.PageSize = 1000
	page, err := v.api.EventPage(ctx, q)
	if signedOut(err) {
		return eventList{}, err
	}
	if err != nil {
		return eventList{Problem: v.problem(err).Text}, nil
	}
	newest := page.Events[max(0, len(page.Events)-most):]
	slices.Reverse(newest)
	return eventList{Events: newest}, nil
}

func freezeHost(ctx context.Context, v *visit) (string, error) {
	host, err := v.theHost()
	if err != nil {
		return "", err
	}
	minutes, err := v.number("minutes")
	if err != nil {
		return "", err
	}
	freezing := client.Freezing{TTL: procfleet.Duration(time.Duration(minutes) * time.Minute), Reason: v.query("reason")}
	_, err = v.api.Freeze(ctx, freezing, v.on(host))
	return Prefix + "hosts/" + url.PathEscape(host.String()), err
}

func liftHost(ctx context.Context, v *visit) (string, error) {
	host, err := v.theHost()
	if err != nil {
		return "", err
	}
	_, err = v.api.Lift(ctx, v.query("namespace"), v.on(host))
	return Prefix + "hosts/" + url.PathEscape(host.String()), err
}

// processesView is the content of the list of the processes of all hosts.
type processesView struct {
	Namespace, Name, State, Labels, Business string
	Restarted, Drifted                       bool
	Processes                                processRows
	Next                                     string
}

func listProcesses(ctx context.Context, v *visit) (any, error) {
	view := processesView{
		Namespace: v.query("namespace"), Name: v.query("name"), State: v.query("state"), Labels: v.query("labels"),
		Business: v.business(), Restarted: v.query("restarted") != "", Drifted: v.query("drifted") != "",
	}
	page, err := v.api.FleetPage(ctx, client.FleetQuery{
		HostQuery: client.HostQuery{Query: client.Query{PageSize: rows, Cursor: v.query("after"), Business: view.Business}, Labels: words(view.Labels)},
		Namespace: view.Namespace, Name: view.Name, State: view.State, Restarted: view.Restarted, Drift: true, Drifted: view.Drifted,
	})
	view.Processes, view.Next = newProcessRows(page.Items), v.nextPage(page.Next)
	return view, err
}

// processRows are the processes in a table. A page of the API ends with all processes of its last host,
// so it can have more than the table shows.
type processRows struct {
	Shown  []client.FleetProcess
	Hidden int
}

func newProcessRows(all []client.FleetProcess) processRows {
	shown := min(len(all), 2*rows)
	return processRows{all[:shown], len(all) - shown}
}

// processView is the content of the page of a process on a host.
type processView struct {
	Host    procfleet.Host
	Key     string
	Process *client.FleetProcess // nil if no live agent has reported the process
	// Registration is nil if the process is not registered, or has no namespace.
	Registration *client.Registration
	Limits       []client.Group
	Events       eventList
	Output       string
	NoOutput     string // why there is no output
	Buttons      []processButton
}

type processButton struct {
	Action procfleet.Action
	Link   string
}

// outputLines is the number of lines of output on the page of a process.
const outputLines = 100

func showProcess(ctx context.Context, v *visit) (any, error) {
	host, err := v.theHost()
	if err != nil {
		return nil, err
	}
	view := processView{Host: host, Key: v.r.PathValue("key")}
	processes, err := v.processesOf(ctx, host)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(processes, func(p client.FleetProcess) bool { return p.Key == view.Key }); i >= 0 {
		view.Process = &processes[i]
	}
	if view.Process != nil && view.Process.Namespace != "" {
		if err := view.registered(ctx, v); err != nil {
			return nil, err
		}
	}
	view.Events, err = v.recentEvents(ctx, client.EventQuery{Host: host}, 1000)
	if err != nil {
		return nil, err
	}
	own := slices.DeleteFunc(view.Events.Events, func(e procfleet.HostEvent) bool { return e.Key != view.Key })
	view.Events.Events = own[:min(len(own), eventsShown)]
	page, err := v.api.OutputPage(ctx, client.OutputQuery{Host: host, Process: view.Key, Business: v.business(), Tail: outputLines})
	if signedOut(err) {
		return nil, err
	}
	if view.Output = page.Data; err != nil {
		view.NoOutput = v.problem(err).Text
	}
	return view, nil
}

// registered adds what the server stores of a process: its spec, its groups and the buttons that use it.
func (view *processView) registered(ctx context.Context, v *visit) error {
	p, on := view.Process, v.on(view.Host)
	found, err := v.api.ProcessesOn(ctx, p.Namespace, p.Name, on)
	if err != nil {
		return err
	}
	view.Registration = found[0].Registration
	groups, err := v.api.GroupsOn(ctx, p.Namespace, on)
	if err != nil {
		return err
	}
	view.Limits = groups[0].Groups
	if view.Registration != nil {
		for _, action := range allActions {
			view.Buttons = append(view.Buttons, processButton{action, operateLink(action, p.Namespace, p.Name, view.Host)})
		}
	}
	return nil
}
