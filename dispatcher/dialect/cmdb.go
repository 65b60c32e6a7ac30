package dialect

import (
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/catalog"
)

// cmdb is the process API of the legacy BlueKing CMDB: the catalog of the
// processes that a business defines and binds to modules. Its codes and
// attributes are those of release 3.2.2.
func cmdb() Dialect {
	d := Dialect{Name: "cmdb", Family: Family{
		Prefixes: []string{cmdbRoot, strings.TrimSuffix(cmdbRoot, "/")}, Owns: cmdbOwns, Credentials: cmdbCredentials, Fail: cmdbFail,
	}}
	for _, c := range []struct {
		name, method, path string
		endpoint           Endpoint
	}{
		{"create_process", http.MethodPost, "{account}/{business}", EditTemplates{decodeCMDBCreate, cmdbCreated}},
		{"search_process", http.MethodPost, "search/{account}/{business}", SearchTemplates{decodeCMDBSearch, cmdbFound, cmdbFoundAll}},
		{"get_process_detail", http.MethodGet, "{account}/{business}/{process}", ShowTemplate{decodeCMDBProcess, cmdbDetail}},
		{"delete_process", http.MethodDelete, "{account}/{business}/{process}", DeleteTemplate{decodeCMDBProcess, cmdbDeleted}},
		{"update_process", http.MethodPut, "{account}/{business}/{process}", EditTemplates{decodeCMDBUpdate, cmdbEdited}},
		{"batch_update_process", http.MethodPut, "{account}/{business}", EditTemplates{decodeCMDBBatch, cmdbEdited}},
		{"get_process_bind_module", http.MethodGet, "module/{account}/{business}/{process}", ShowModules{decodeCMDBModules, cmdbModules}},
		{"bind_process_module", http.MethodPut, "module/{account}/{business}/{process}/{module}", EditTemplates{decodeCMDBBind, cmdbEdited}},
		{"delete_process_module_binding", http.MethodDelete, "module/{account}/{business}/{process}/{module}", EditTemplates{decodeCMDBUnbind, cmdbEdited}},
	} {
		d.Calls = append(d.Calls, Call{Name: "cmdb." + c.name, Paths: bothSlashes(cmdbRoot + c.path), Methods: []string{c.method}, Endpoint: c.endpoint})
	}
	return d
}

const cmdbRoot = "/api/{version}/proc/"

// cmdbPath matches the paths of the CMDB in all versions. Its groups are the version and
// the path below proc/.
var cmdbPath = regexp.MustCompile(`^/api/(v[0-9]+)/proc(?:/(.*))?$`)

// cmdbOwns reports whether a path belongs to the CMDB. GSE's API gateway has paths of
// the form /api/v2/proc/<call>, with a single segment after proc; those do not.
func cmdbOwns(path string) bool {
	at := cmdbPath.FindStringSubmatch(path)
	return at != nil && (at[1] != "v2" || strings.Contains(strings.Trim(at[2], "/"), "/"))
}

// cmdbCredentials returns the credentials of the gateway's header, if there is one. The
// CMDB requires the headers BK_USER and HTTP_BLUEKING_SUPPLIER_ID of every call; BK_USER
// is the user if the gateway's header names none.
func cmdbCredentials(r *Request) (Credentials, error) {
	for _, header := range []struct{ name, value string }{
		{"BK_USER", r.CMDBUser}, {"HTTP_BLUEKING_SUPPLIER_ID", r.CMDBSupplier},
	} {
		if header.value == "" {
			return Credentials{}, &Error{
				Kind: BadHeader, Code: cmdbNoHeader, Field: header.name,
				Problem: "this header is missing; a proxy in front must let header names with underscores pass",
			}
		}
	}
	c, err := bkapiCredentials(r)
	if c.User == "" {
		c.User = r.CMDBUser
	}
	return c, err
}

// cmdbBusiness reads the business from the path; code is the error code for an invalid
// id.
func cmdbBusiness(r *Request, code int) (catalog.Business, error) {
	b := catalog.Business{Account: r.Wildcards["account"]}
	var err error
	if b.ID, err = cmdbID(r, "business", "bk_biz_id", code); err == nil && b.ID < 1 {
		err = &Error{Kind: InvalidField, Code: code, Field: "bk_biz_id", Problem: "is not a number of 1 or more"}
	}
	if err != nil {
		return b, err
	}
	if err := b.Validate(); err != nil {
		f := refused(err, func(string) string { return "bk_supplier_account" })
		f.Code = cmdbInvalid
		return b, f
	}
	return b, nil
}

func cmdbID(r *Request, wildcard, field string, code int) (int64, error) {
	id, err := strconv.ParseInt(r.Wildcards[wildcard], 10, 64)
	if err != nil {
		return 0, &Error{Kind: InvalidField, Code: code, Field: field, Problem: "is not a number"}
	}
	return id, nil
}

func decodeCMDBProcess(r *Request) (TemplateQuery, error) { return cmdbQuery(r, cmdbBadPath) }

// cmdbQuery reads the business and the process from the path; code is the error code for
// invalid ids.
func cmdbQuery(r *Request, code int) (q TemplateQuery, err error) {
	if q.Business, err = cmdbBusiness(r, code); err != nil {
		return q, err
	}
	q.ID, err = cmdbID(r, "process", "bk_process_id", code)
	return q, err
}

// cmdbEnvelope is the body of every response.
type cmdbEnvelope struct {
	Result  bool   `json:"result"`
	Code    int    `json:"bk_error_code"`
	Message string `json:"bk_error_msg"`
	Data    any    `json:"data"`
	// ProcessID is the id of a new process. It is an extension: the published response
	// does not contain the id.
	ProcessID int64 `json:"bk_process_id,omitempty"`
	// Task is the task that notifies agents of changed bindings. It is an extension as
	// well.
	Task procfleet.TaskID `json:"task_id,omitempty"`
}

func cmdbAnswer(data any) Reply {
	return Reply{Status: http.StatusOK, Body: cmdbEnvelope{Result: true, Data: data}}
}
