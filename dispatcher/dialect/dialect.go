// Package dialect has the published JSON shapes of requests and responses. A
// [Dialect] is data plus pure functions: it decodes a request into a
// [procfleet.Submission] or a query, and encodes the result as a response. It uses
// neither the network nor the task store, so every shape can be tested with two
// files: the request and the expected response.
//
// To add a dialect, write one file that builds it, name it in [All], and give
// it a folder of fixtures in testdata; docs/how-to/add-a-dialect.md has the details.
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
	// Name is the folder of fixtures and the first part of a call's full name.
	Name string
	// Prefixes are the path prefixes under which a path that no call has is
	// answered with this dialect's [NoRoute].
	Prefixes []string
	// Owns, if set, reports whether a path is one of the dialect's. It decides
	// before the patterns of other dialects, which may match the path as well.
	Owns  func(path string) bool
	Calls []Call
	// Credentials reads the credentials of a request. The error is an [*Error].
	Credentials func(r *Request) (Credentials, error)
	// CredentialsInBody says that Credentials needs the body of a request
	// without the header X-Bkapi-Authorization. Other callers are authenticated, or
	// refused, before their body is read.
	CredentialsInBody bool
	// NeedsUser says that an application calls for a user, who must be authenticated.
	NeedsUser bool
	// Fail encodes a failure.
	Fail func(f *Error, requestID string) Reply
	// Families are further families of paths that lead to the same calls. A
	// dialect that is reached in one way only has none.
	Families []Family
}

// Family is a family of paths of the calls of a dialect, and the form of errors
// there. Requests and responses are the same in all families.
type Family struct {
	Prefixes []string // as in [Dialect], and so is Owns
	Owns     func(path string) bool
	// Calls are calls of the dialect under the paths and methods of the family.
	Calls       []Call
	Credentials func(r *Request) (Credentials, error)
	// CredentialsInBody and NeedsUser are as in [Dialect].
	CredentialsInBody, NeedsUser bool
	Fail                         func(f *Error, requestID string) Reply
}

// Reached returns all families of paths: the dialect's own, then the further ones.
func (d *Dialect) Reached() []Family {
	own := Family{
		Prefixes: d.Prefixes, Owns: d.Owns, Calls: d.Calls, Credentials: d.Credentials, CredentialsInBody: d.CredentialsInBody, NeedsUser: d.NeedsUser, Fail: d.Fail,
	}
	return append([]Family{own}, d.Families...)
}

// Call is one endpoint of a dialect.
type Call struct {
	// Name is unique among all calls of all dialects. For calls that accept
	// operations it becomes the task's dialect.
	Name string
	// Paths are http.ServeMux path patterns.
	Paths    []string
	Methods  []string
	Endpoint Endpoint
}

// Endpoint is what a call does. It is a [Codec], or one of the types that need
// more than one: [Accept], [Outcomes], [Watch], [SearchTemplates] and [ShowTemplate].
type Endpoint interface{ endpoint() }

// Codec is an endpoint that decodes a request into Q and encodes its result R.
// The pair of types is unique to each of the aliases below: it selects the
// code and the authorization of the dispatcher.
type Codec[Q, R any] struct {
	// Decode returns an [*Error] that names the field in the dialect's words.
	Decode func(r *Request) (Q, error)
	Encode func(q *Q, result R, requestID string) Reply
}

func (Codec[Q, R]) endpoint() {}

// Accept creates a task.
type Accept struct {
	// Decode fills everything but Submission.Dialect and Application. The
	// error is an [*Error] that names the field in the dialect's own words.
	Decode func(r *Request) (procfleet.Submission, error)
	Encode func(id procfleet.TaskID, requestID string) Reply
	// Plan encodes the plan of a request that is only planned, see [Planned]; nil for
	// calls that cannot be planned.
	Plan func(p *v1.Plan, requestID string) Reply
	// Label returns the [procfleet.Target.Label] of a host that the caller did not
	// name, because it asked for all hosts on which a process is registered; nil is
	// no label, for [procfleet.Host.String].
	Label func(h procfleet.Host) string
}

// Outcomes streams all results of a task. The chunks arrive one by one, and one
// chunk has all items of one process on one host. The encoder writes while it
// reads, whatever the size of the task, and returns the first error of either side.
type Outcomes struct {
	Decode func(r *Request) (procfleet.TaskID, error)
	Encode func(w io.Writer, requestID string, chunks iter.Seq2[[]procfleet.ItemResult, error]) error
}

// ShowTask returns one task.
type ShowTask = Codec[procfleet.TaskID, *procfleet.Task]

// Watch streams every change of one task until the task is over, as server-sent
// events. Encode returns the data of one event; its status is ignored.
type Watch struct {
	Decode func(r *Request) (WatchedTask, error)
	Encode func(t *procfleet.Task) Reply
}

// WatchedTask asks for the changes of a task since LastEventID. With an empty or
// unknown one the stream begins with the current state.
type WatchedTask struct {
	Task        procfleet.TaskID
	LastEventID string
}

// ListTasks returns a page of tasks, newest first.
type ListTasks = Codec[TaskPage, Tasks]

// TaskPage asks for up to Limit tasks older than Before; 0 begins with the newest.
type TaskPage struct {
	Before procfleet.Number
	Limit  int
}

// ListResults returns a page of the results of a task.
type ListResults = Codec[ResultPage, Results]

// Tasks is a page of tasks. Next is the task after which the next page begins,
// "" after the last one. A page may have fewer tasks than the limit and a Next.
type Tasks struct {
	Tasks []procfleet.Task
	Next  procfleet.TaskID
}

// ResultPage asks for up to Limit results; an empty State means every state.
type ResultPage struct {
	Task   procfleet.TaskID
	State  procfleet.State
	Cursor string
	Limit  int
}

// Results is a page of results. Next is the cursor of the next page.
type Results struct {
	Items []procfleet.ItemResult
	Next  string
}

// ListHosts returns a page of the hosts with a live agent.
type ListHosts = Codec[HostPage, []v1.Agent]

// HostPage asks for up to Limit hosts after the given one; zero begins.
type HostPage struct {
	After procfleet.Host
	Limit int
}

func (Accept) endpoint()   {}
func (Outcomes) endpoint() {}
func (Watch) endpoint()    {}

// Request is the part of an HTTP request that a dialect may use.
type Request struct {
	Method string
	Path   string // without escapes; empty for a request that did not come by HTTP
	ID     string // the path's wildcard of this name
	// Wildcards has what stands in the path for each wildcard of its pattern,
	// without escapes.
	Wildcards map[string]string
	Query     url.Values
	Body      []byte
	// MaxItems is how many items the request may be for; 0 is no limit. A
	// body in which there is more than so many could need is not decoded.
	MaxItems int
	// Authorization and BkapiAuthorization are the headers Authorization and
	// X-Bkapi-Authorization.
	Authorization      string
	BkapiAuthorization string
	// BkAppCode and BkUsername are the headers in which an ESB in front names its
	// caller.
	BkAppCode, BkUsername string
	// CMDBUser and CMDBSupplier are the headers BK_USER and
	// HTTP_BLUEKING_SUPPLIER_ID, also with hyphens, as some proxies write them.
	CMDBUser, CMDBSupplier string
	LastEventID            string // the header of this name
	// ContentType and IfMatch are the headers of these names.
	ContentType, IfMatch string
}

// Reply is a short response: the HTTP status, the headers Location,
// WWW-Authenticate and ETag if any, and a body to be written as JSON.
type Reply struct {
	Status       int
	Location     string
	Authenticate string
	ETag         string
	Body         any
}

// JSON returns the encoded body, ended by a newline.
func (r Reply) JSON() ([]byte, error) {
	if done, ok := r.Body.(rendered); ok {
		return append(done, '\n'), nil
	}
	body, err := appendJSON(nil, r.Body)
	return append(body, '\n'), err
}

// The scope of a request is what its caller must be authorized for: a business,
// "" for none, or a business and targets.

// InBusiness returns the business. A business of an account other than the
// default one is named by its namespace, which tells the businesses of several
// suppliers apart.
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
func (q *GroupQuery) OnTargets() (string, []procfleet.Target)   { return q.Business, q.Targets }
func (q *ProcessQuery) OnTargets() (string, []procfleet.Target) { return q.Business, q.Targets }
func (q *AgentQuery) OnTargets() (string, []procfleet.Target)   { return q.Business, q.Targets }
func (q *AgentBinding) OnTargets() (string, []procfleet.Target) { return q.Business, q.Targets }
func (q *Freezing) OnTargets() (string, []procfleet.Target)     { return q.Business, q.Targets }
