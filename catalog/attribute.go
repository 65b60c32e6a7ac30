package catalog

// Attribute is the name of a property of a template.
type Attribute string

// The attributes, in the order of the published model (legacy BlueKing CMDB,
// object "process").
const (
	AttrName         Attribute = "name"
	AttrDescription  Attribute = "description"
	AttrBindIP       Attribute = "bind_ip"
	AttrPort         Attribute = "port"
	AttrProtocol     Attribute = "protocol"
	AttrFuncID       Attribute = "func_id"
	AttrFuncName     Attribute = "func_name" // name of the program, as the host shows it
	AttrWorkPath     Attribute = "work_path"
	AttrUser         Attribute = "user"
	AttrInstances    Attribute = "instances"
	AttrPriority     Attribute = "priority"
	AttrTimeout      Attribute = "timeout" // seconds
	AttrStart        Attribute = "start_cmd"
	AttrStop         Attribute = "stop_cmd"
	AttrRestart      Attribute = "restart_cmd"
	AttrKill         Attribute = "kill_cmd"
	AttrReload       Attribute = "reload_cmd"
	AttrPidFile      Attribute = "pid_file"
	AttrAutoStart    Attribute = "auto_start"     // true: agents supervise the process
	AttrAutoStartGap Attribute = "auto_start_gap" // seconds
	AttrArgsPattern  Attribute = "args_pattern"
)

// Further attributes of a template, which only a [Search] can use.
const (
	AttrID        Attribute = "id"
	AttrModule    Attribute = "module"     // matches if one of the bound modules matches
	AttrCreatedAt Attribute = "created_at" // microseconds since 1970
	AttrChangedAt Attribute = "changed_at"
)

// AttributeType is the type of the values of an attribute.
type AttributeType string

// The attribute types.
const (
	TypeText     AttributeType = "text"      // up to MaxText bytes
	TypeLongText AttributeType = "long text" // up to MaxLongText bytes
	TypeChoice   AttributeType = "choice"    // one of Choices, as text
	TypeNumber   AttributeType = "number"    // Least to Most
	TypeTruth    AttributeType = "truth"
	TypePorts    AttributeType = "ports" // text, or one port as a number
)

// Limits of values.
const (
	MaxText     = 256
	MaxLongText = 2000
	// MostNumber is the maximum of every number attribute; the minimum is 1.
	MostNumber = 10000
)

// AttributeRule defines the valid values of an attribute.
type AttributeRule struct {
	Attribute Attribute
	Type      AttributeType
	Choices   []string // only for TypeChoice
	Required  bool     // the value must be neither null nor empty
	Default   Value    // value of a new template that does not set the attribute
}

// AttributeRules returns the rules of all attributes, in the order of the
// published model.
func AttributeRules() []AttributeRule {
	empty := Text("")
	number := func(a Attribute) AttributeRule { return AttributeRule{Attribute: a, Type: TypeNumber} }
	text := func(a Attribute) AttributeRule { return AttributeRule{Attribute: a, Type: TypeText, Default: empty} }
	long := func(a Attribute) AttributeRule {
		return AttributeRule{Attribute: a, Type: TypeLongText, Default: empty}
	}
	return []AttributeRule{
		{Attribute: AttrName, Type: TypeText, Required: true},
		text(AttrDescription),
		{Attribute: AttrBindIP, Type: TypeChoice, Choices: []string{"1", "2", "3", "4"}},
		{Attribute: AttrPort, Type: TypePorts, Default: empty},
		{Attribute: AttrProtocol, Type: TypeChoice, Choices: []string{"1", "2"}, Default: Text("1")},
		text(AttrFuncID),
		text(AttrFuncName),
		long(AttrWorkPath),
		text(AttrUser),
		number(AttrInstances),
		number(AttrPriority),
		number(AttrTimeout),
		long(AttrStart),
		long(AttrStop),
		long(AttrRestart),
		long(AttrKill),
		long(AttrReload),
		long(AttrPidFile),
		{Attribute: AttrAutoStart, Type: TypeTruth, Default: Truth(false)},
		number(AttrAutoStartGap),
		long(AttrArgsPattern),
	}
}
