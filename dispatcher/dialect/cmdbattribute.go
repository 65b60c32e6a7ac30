package dialect

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/procfleet/procfleet/catalog"
)

// cmdbAttribute is an attribute as the CMDB names it, to programs and to
// people. See [catalog.AttributeRules].
type cmdbAttribute struct {
	id, name  string
	attribute catalog.Attribute
}

// cmdbAttributes are those of a process, in the order of the published model,
// in which the business comes before them.
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

// What else the CMDB stores of a process.
const (
	cmdbBizID     = "bk_biz_id"
	cmdbAccount   = "bk_supplier_account"
	cmdbProcessID = "bk_process_id"
	cmdbCreatedAt = "create_time"
	cmdbChangedAt = "last_time"
)

// cmdbAttributeOf finds an attribute by the CMDB's name.
func cmdbAttributeOf(id string) (catalog.Attribute, bool) {
	i := slices.IndexFunc(cmdbAttributes, func(a cmdbAttribute) bool { return a.id == id })
	if i < 0 {
		return "", false
	}
	return cmdbAttributes[i].attribute, true
}

// cmdbProperty is the CMDB's name of an attribute; what it does not know is
// named as it is.
func cmdbProperty(attribute catalog.Attribute) string {
	for i := range cmdbAttributes {
		if cmdbAttributes[i].attribute == attribute {
			return cmdbAttributes[i].id
		}
	}
	return string(attribute)
}

// decodeCMDBBody reads the members of a body, which must be a JSON object.
func decodeCMDBBody(r *Request) (map[string]json.RawMessage, error) {
	var members map[string]json.RawMessage
	err := decodeNativeBody(r, &members)
	return members, err
}

// cmdbValues are the attributes that a body gives to a process. The business
// and the account are those of the path, whatever it says.
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

// cmdbRow is a process as it is found: the members that fields names, without
// any all of them.
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
