// Package dialect defines the published JSON shapes of requests and responses. A
// [Dialect] is data plus pure functions: it decodes a request into a
// [procfleet.Submission] or a query, and encodes the result as a response. It uses
// neither the network nor the task store, so every shape can be tested with two files:
// the request and the expected response.
//
// To add a dialect, write one file that builds it, name it in [All], and add a folder of
// fixtures to testdata; docs/how-to/add-a-dialect.md has the details.
package dialect

import (
	"io"
	"iter"
	"net/url"

	"github.com/procfleet/procfleet"
	v1 "github.com/procfleet/procfleet/api/v1"
)

// All returns every dialect.
func All() []Dialect {
	return []Dialect{gse(), job(), oldJob(), cmdb(), native()}
}

// Dialect is one published API: its calls, and the form of its errors.
type Dialect struct {
	// Name is the folder of fixtures and the first part of the name of every call.
	Name string
	// Family is the dialect's own group of paths.
	Family
	// Families are further groups of paths that lead to the same calls, for example
	// behind another gateway; nil if there are none.
	Families []Family
}

// Family is a group of paths for the calls of a dialect, with its own credentials and
// its own form of errors. Requests and successful responses are the same in all
// families.
type Family struct {
	// Prefixes are path prefixes. A request for an unknown path below one of them fails
	// with [NoRoute] in the form of this family.
	Prefixes []string
	// Owns, if not nil, reports whether a path belongs to this family. The dispatcher
	// calls it before it matches the patterns of other families, because those may match
	// the path too.
	Owns func(path string) bool
	// Calls are the calls of the dialect with the paths and methods of this family.
	Calls []Call
	// Credentials reads the credentials of a request. The error is an [*Error].
	Credentials func(r *Request) (Credentials, error)
	// CredentialsInBody means that Credentials reads the body of a request without the
	// header X-Bkapi-Authorization. Every other caller is authenticated, or rejected,
	// before the dispatcher reads the body.
	CredentialsInBody bool
	// NeedsUser means that applications call on behalf of a user, and that the
	// dispatcher authenticates this user as well.
	NeedsUser bool
	// Fail encodes an error as a response.
	Fail func(f *Error, requestID string) Reply
}

// Reached returns all families of paths: first the dialect's own, then Families.
func (d *Dialect) Reached() []Family { return append([]Family{d.Family}, d.Families...) }

// Call is one endpoint of a dialect.
type Call struct {
	// Name is unique among the calls of all dialects. A call that creates a task stores
	// it as the dialect of the task.
	Name string
	// Paths are [net/http.ServeMux] patterns without a method.
	Paths    []string
	Methods  []string
	Endpoint Endpoint
}

// Endpoint is the functions that decode the request of a call and encode its response.
// It is a [Codec], or a type with functions of other signatures: [Accept], [Outcomes],
// [Watch], [SearchTemplates] and [ShowTemplate].
type Endpoint interface{ endpoint() }

// Codec is an endpoint that decodes a request into Q and encodes its result R. Every
// alias below has its own pair of types. By this pair the dispatcher selects the
// function that serves the call and the authorization that it requires.
type Codec[Q, R any] struct {
	// Decode returns an [*Error] that names the invalid field as the dialect does.
	Decode func(r *Request) (Q, error)
	Encode func(q *Q, result R, requestID string) Reply
}

func (Codec[Q, R]) endpoint() {}

// Accept is the endpoint that creates a task.
type Accept struct {
	// Decode fills every field but Submission.Dialect and Application, which the
	// dispatcher sets. The error is an [*Error] that names the invalid field as the
	// dialect does.
	Decode func(r *Request) (procfleet.Submission, error)
	Encode func(id procfleet.TaskID, requestID string) Reply
	// Plan encodes the plan of a request for which [Planned] reports true. It is nil for
	// calls that cannot be planned.
	Plan func(p *v1.Plan, requestID string) Reply
	// Label returns the [procfleet.Target.Label] of a host that the caller did not name,
	// because it requested all hosts on which a process is registered. If Label is nil,
	// such a host is written as [procfleet.Host.String].
	Label func(h procfleet.Host) string
}

// Outcomes is the endpoint that streams all results of a task in chunks. All items of
// one process on one host are in the same chunk. Encode writes each chunk before it
// reads the next one, so that its memory does not depend on the size of the task. It
// returns the first error of reading or writing.
type Outcomes struct {
	Decode func(r *Request) (procfleet.TaskID, error)
	Encode func(w io.Writer, requestID string, chunks iter.Seq2[[]procfleet.ItemResult, error]) error
}

// ShowTask is the endpoint that returns one task.
type ShowTask = Codec[procfleet.TaskID, *procfleet.Task]

// ControlTask is the endpoint that pauses, resumes or cancels a task and returns it, or
// that retries or undoes a task and returns the new one.
type ControlTask = Codec[TaskControl, Controlled]

// Controlled is the task that a [TaskControl] changed or created, or the plan of a retry.
type Controlled struct {
	Task *procfleet.Task
	Plan *v1.Plan // nil if the retry was not planned
}

// Transition is a kind of [TaskControl].
type Transition string

// Transitions of a task.
const (
	PauseTask   Transition = "pause"
	ResumeTask  Transition = "resume"
	ApproveTask Transition = "approve"
	CancelTask  Transition = "cancel"
	RetryTask   Transition = "retry"
	UndoTask    Transition = "undo"
)

// TaskControl requests a transition of a task. IfSeq is the expected
// [procfleet.Task.Seq]; nil accepts any. Mode is set for [CancelTask] only, Hosts for [CancelTask]
// and [RetryTask], States and Planned for [RetryTask]; empty Hosts means all. Hold and MaxFailures
// are set for [ResumeTask] only, Stage for [ApproveTask], Speed for [UndoTask].
type TaskControl struct {
	Task       procfleet.TaskID
	Transition Transition
	Mode       procfleet.CancelMode
	States     []procfleet.State
	Hosts      []procfleet.Host
	Planned    bool // only the plan of the retry is requested
	Hold       procfleet.HoldKind
	// MaxFailures is the number of failed hosts that a rollout tolerates from now on.
	MaxFailures procfleet.Amount
	Speed       procfleet.UndoSpeed
	Stage       int // number of the stage that is approved, from 1
	Reason      string
	IfSeq       *int
}

// Watch is the endpoint that streams the changes of one task as server-sent events until
// the task has ended. Encode returns the data of one event; the dispatcher ignores its
// status.
type Watch struct {
	Decode func(r *Request) (WatchedTask, error)
	Encode func(t *procfleet.Task) Reply
}

// WatchedTask requests the changes of a task after the event LastEventID. If LastEventID
// is empty or unknown, the stream begins with the current state.
type WatchedTask struct {
	Task        procfleet.TaskID
	LastEventID string
}

// FollowTasks is the endpoint that streams the events of all tasks as server-sent events. Encode
// returns the data of one event; the dispatcher ignores its status.
type FollowTasks = Codec[TaskFeed, v1.TaskEvent]

// TaskFeed requests the events of tasks after a position.
type TaskFeed struct {
	After    *uint64 // nil: only events from now on
	Business string  // "": of all businesses
	Task     procfleet.TaskID
}

// ListTasks is the endpoint that returns a page of tasks, newest first.
type ListTasks = Codec[TaskPage, Tasks]

// TaskPage requests up to Limit tasks older than Before. With Before 0 the page begins
// with the newest task.
type TaskPage struct {
	Before procfleet.Number
	Limit  int
	TaskFilter
}

// ListResults is the endpoint that returns a page of the results of a task.
type ListResults = Codec[ResultPage, Results]

// Tasks is a page of tasks. The next page has the tasks older than Next; "" means that
// there is none. A page with fewer tasks than the limit may have a Next.
type Tasks struct {
	Tasks []procfleet.Task
	Next  procfleet.TaskID
}

// ResultPage requests up to Limit results of a task. An empty State selects every state,
// and an empty Cursor the first page.
type ResultPage struct {
	Task   procfleet.TaskID
	State  procfleet.State
	Cursor string
	Limit  int
}

// Results is a page of results. Next is the cursor of the next page, "" at the end.
type Results struct {
	Items []procfleet.ItemResult
	Next  string
}

// ListHosts is the endpoint that returns a page of hosts.
type ListHosts = Codec[HostPage, Hosts]

// Hosts is a page of hosts. The next page begins after the host Next; the
// zero host ends the list. A page may be short or empty although another page follows.
type Hosts struct {
	Agents []v1.Agent
	Next   procfleet.Host
}

// HostPage requests up to Limit hosts after the host After; with the zero host the page
// begins with the first host. With Processes the page counts the processes of each host.
// With Business it lists the hosts of its topology, or of its modules, including those
// without a live agent, or with Missing only these.
type HostPage struct {
	After     procfleet.Host
	Limit     int
	Processes bool     `json:",omitempty"`
	Business  string   `json:",omitempty"`
	Modules   []string `json:",omitempty"`
	Missing   bool     `json:",omitempty"`
	HostFilter
}

// InBusiness returns the business whose hosts the request is about; "" = all hosts.
func (q *HostPage) InBusiness() string { return q.Business }

func (Accept) endpoint()   {}
func (Outcomes) endpoint() {}
func (Watch) endpoint()    {}

// Request is the part of a request that a dialect may read.
type Request struct {
	Method string
	Path   string // unescaped; empty for a request that was received through NATS
	ID     string // the value of the path wildcard {id}
	// Wildcards are the unescaped values of the wildcards in the pattern of the path, by
	// name.
	Wildcards map[string]string
	Query     url.Values
	Body      []byte
	// MaxItems is the maximum number of items of the request; 0 is no limit. A body with
	// more array elements than so many items can need is rejected before it is decoded.
	MaxItems int
	// Authorization and BkapiAuthorization are the headers Authorization and
	// X-Bkapi-Authorization.
	Authorization      string
	BkapiAuthorization string
	// BkAppCode and BkUsername are the headers Bk-App-Code and Bk-Username, in which an
	// ESB in front of the dispatcher names its caller.
	BkAppCode, BkUsername string
	// CMDBUser and CMDBSupplier are the headers BK_USER and HTTP_BLUEKING_SUPPLIER_ID.
	// Names with hyphens instead of underscores count too, because some proxies replace
	// the underscores.
	CMDBUser, CMDBSupplier string
	LastEventID            string // the header Last-Event-ID
	// ContentType and IfMatch are the headers Content-Type and If-Match.
	ContentType, IfMatch string
}

// Reply is a response that is not streamed: its HTTP status, the headers Location,
// WWW-Authenticate and ETag, each absent if empty, and a body that is encoded as JSON.
type Reply struct {
	Status       int
	Location     string
	Authenticate string
	ETag         string
	Body         any
}

// JSON returns the body as JSON, followed by a newline.
func (r Reply) JSON() ([]byte, error) {
	if done, ok := r.Body.(rendered); ok {
		return append(done, '\n'), nil
	}
	body, err := appendJSON(nil, r.Body)
	return append(body, '\n'), err
}

// The methods InBusiness and OnTargets return the scope of a request, for which the
// dispatcher authorizes the caller: a business, or a business and targets. An empty
// business is no business.

// InBusiness returns the business. A business of an account other than the default one
// is named by its namespace, which contains the account: businesses of several accounts
// may have the same id.
func (q *ProcessPage) InBusiness() string                       { return q.Business }
func (q *TemplateEdits) InBusiness() string                     { return q.Business.Namespace() }
func (q *TemplateQuery) InBusiness() string                     { return q.Business.Namespace() }
func (q *TemplateSearch) InBusiness() string                    { return q.Business.Namespace() }
func (q *NamedTemplates) InBusiness() string                    { return q.Business.Namespace() }
func (q *DriftQuery) InBusiness() string                        { return q.Business.Namespace() }
func (q *TopologyChange) InBusiness() string                    { return q.Business.Namespace() }
func (q *TopologyEdit) InBusiness() string                      { return q.Business.Namespace() }
func (q *TopologyQuery) InBusiness() string                     { return q.Business.Namespace() }
func (q *Registering) OnTargets() (string, []procfleet.Target)  { return q.Business, q.Targets }
func (q *Grouping) OnTargets() (string, []procfleet.Target)     { return q.Business, q.Targets }
func (q *LabelChange) OnTargets() (string, []procfleet.Target)  { return q.Business, q.Targets }
func (q *GroupQuery) OnTargets() (string, []procfleet.Target)   { return q.Business, q.Targets }
func (q *ProcessQuery) OnTargets() (string, []procfleet.Target) { return q.Business, q.Targets }
func (q *AgentQuery) OnTargets() (string, []procfleet.Target)   { return q.Business, q.Targets }
func (q *AgentBinding) OnTargets() (string, []procfleet.Target) { return q.Business, q.Targets }
func (q *Freezing) OnTargets() (string, []procfleet.Target)     { return q.Business, q.Targets }
