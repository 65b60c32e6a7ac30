package dialect

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/procfleet/procfleet/catalog"
)

// cmdbAttribute is an attribute of a process with the id and the display name that the
// CMDB has for it. See [catalog.AttributeRules].
type cmdbAttribute struct {
	id, name  string
	attribute catalog.Attribute
}

// cmdbAttributes are the attributes of a process in the order of the published model. In
// that model the business precedes them.
var cmdbAttributes = []cmdbAttribute{
	{"bk_process_name", "进程名", catalog.AttrName},
	{"description", "进程描述", catalog.AttrDescription},
	{"bind_ip", "绑定IP", catalog.AttrBindIP},
	{"port", "端口", catalog.AttrPort},
	{"protocol", "协议", catalog.AttrProtocol},
	{"bk_func_id", "功能ID", catalog.AttrFuncID},
	{"bk_func_name", "功能名", catalog.AttrFuncName},
	{"work_path", "工作路径", catalog.AttrWorkPath},
	{"user", "启动用户", catalog.AttrUser},
	{"proc_num", "启动数量", catalog.AttrInstances},
	{"priority", "启动优先级", catalog.AttrPriority},
	{"timeout", "操作超时时长", catalog.AttrTimeout},
	{"start_cmd", "启动命令", catalog.AttrStart},
	{"stop_cmd", "停止命令", catalog.AttrStop},
	{"restart_cmd", "重启命令", catalog.AttrRestart},
	{"face_stop_cmd", "强制停止", catalog.AttrKill},
	{"reload_cmd", "进程重载命令", catalog.AttrReload},
	{"pid_file", "PID文件路径", catalog.AttrPidFile},
	{"auto_start", "是否自动拉起", catalog.AttrAutoStart},
	{"auto_time_gap", "拉起间隔", catalog.AttrAutoStartGap},
	{"bk_start_param_regex", "启动参数匹配规则", catalog.AttrArgsPattern},
}

// Members of a process in the CMDB that are not attributes of the catalog.
const (
	cmdbBizID     = "bk_biz_id"
	cmdbAccount   = "bk_supplier_account"
	cmdbProcessID = "bk_process_id"
	cmdbCreatedAt = "create_time"
	cmdbChangedAt = "last_time"
)

func cmdbAttributeOf(id string) (catalog.Attribute, bool) {
	i := slices.IndexFunc(cmdbAttributes, func(a cmdbAttribute) bool { return a.id == id })
	if i < 0 {
		return "", false
	}
	return cmdbAttributes[i].attribute, true
}

// cmdbProperty returns the CMDB's id of an attribute, or the catalog's name if the CMDB
// has no such attribute.
func cmdbProperty(attribute catalog.Attribute) string {
	for i := range cmdbAttributes {
		if cmdbAttributes[i].attribute == attribute {
			return cmdbAttributes[i].id
		}
	}
	return string(attribute)
}

func decodeCMDBBody(r *Request) (map[string]json.RawMessage, error) {
	var members map[string]json.RawMessage
	err := decodeNativeBody(r, &members)
	return members, err
}

// cmdbValues reads the attributes of a process from a body. It ignores the business and
// the account in the body: those of the path apply. A new process (creating) must have
// all required attributes.
func cmdbValues(members map[string]json.RawMessage, creating bool) (map[catalog.Attribute]catalog.Value, error) {
	set := make(map[catalog.Attribute]catalog.Value, len(members))
	for _, id := range slices.Sorted(maps.Keys(members)) {
		if id == cmdbBizID || id == cmdbAccount {
			continue
		}
		attribute, known := cmdbAttributeOf(id)
		if !known {
			return nil, invalid("", "%s", withCode(fmt.Sprintf("%q is no attribute of a process", id), cmdbUnknown))
		}
		var v catalog.Value
		if err := v.UnmarshalJSON(members[id]); err != nil {
			return nil, invalid("", "%s", withCode(id+": "+err.Error(), cmdbInvalid))
		}
		set[attribute] = v
	}
	if wrong, ok := errors.AsType[*catalog.ValueError](catalog.CheckValues(set, creating)); ok {
		return nil, invalid("", "%s", cmdbValueProblem(wrong))
	}
	return set, nil
}

// cmdbRow returns a process as a search shows it: only the members in fields, or all
// members if fields is empty.
func cmdbRow(b catalog.Business, t *catalog.Template, fields []string) map[string]any {
	row := map[string]any{
		cmdbBizID: b.ID, cmdbAccount: b.Account, cmdbProcessID: t.ID,
		cmdbCreatedAt: t.CreatedAt.UTC(), cmdbChangedAt: t.ChangedAt.UTC(),
	}
	for i := range cmdbAttributes {
		a := &cmdbAttributes[i]
		row[a.id] = t.Values[a.attribute]
	}
	if len(fields) > 0 {
		maps.DeleteFunc(row, func(id string, _ any) bool { return !slices.Contains(fields, id) })
	}
	return row
}
