package agentproto

// Output requests a part of the standard output and standard error of a process and of its
// start command. It is a request to [AgentSubject]; the reply is an [OutputReply].
type Output struct {
	Header
	Host string `json:"host"` // as in [Command]
	Key  string `json:"key"`  // of the process
	// File and Offset continue after an earlier reply: its File and Next. Without File the
	// reply begins Tail lines before the end.
	File   string `json:"file,omitempty"`
	Offset int64  `json:"offset,omitzero"`
	Tail   int    `json:"tail,omitzero"` // 0 is none
	// AgeMS, without File, requests all output of the last milliseconds, instead of Tail.
	AgeMS int64 `json:"age_ms,omitzero"`
	// LogPath requests the file [Spec.LogPath] of the process instead of its output.
	LogPath bool `json:"log_path,omitzero"`
}

// OutputReply is the reply to an [Output]: at most [MaxOutputPage] bytes, or Refused.
type OutputReply struct {
	Header
	Instance    string `json:"instance"`
	Incarnation string `json:"incarnation"`
	Refused     string `json:"refused,omitempty"` // values as in [Reply.Refused]
	// Message explains Refused, or why File is empty.
	Message string `json:"message,omitempty"`
	// File is the file of Data; empty if the process has no output. After a restart of the
	// process it is another file.
	File string `json:"file,omitempty"`
	Data []byte `json:"data,omitempty"` // any bytes of the process
	Next int64  `json:"next,omitzero"`  // offset after Data
	More bool   `json:"more,omitzero"`  // there is more after Data already
	Lost bool   `json:"lost,omitzero"`  // output between the request's position and Data is gone
}

// MaxOutputPage is the maximum size of [OutputReply.Data], in bytes.
const MaxOutputPage = 64 << 10
