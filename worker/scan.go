package worker

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/procfleet/procfleet/agentproto"
)

// Decoding ten thousand results with reflection costs more than everything
// else that a worker does with them. This file reads what agents write in
// practice: compact JSON, known fields, ASCII without escapes. Whatever is
// else it leaves to [agentproto.Decode], which decides what is valid; a fuzz
// test holds the two together.

// readResults returns false for what it does not read.
func readResults(data []byte) (m agentproto.Results, ok bool) {
	if len(data) > agentproto.MaxMessageBytes {
		return m, false
	}
	s := scanner{data: data}
	s.object(func(name []byte) {
		switch string(name) {
		case "task":
			m.Task = s.text()
		case "host":
			m.Host = s.text()
		case "instance":
			m.Instance = s.text()
		case "results":
			s.once(m.Results == nil)
			m.Results = make([]agentproto.Result, 0, 1)
			s.array(func() { m.Results = append(m.Results, s.result()) })
		default:
			s.header(name, &m.Header)
		}
	})
	return m, s.complete() && m.Type == agentproto.TypeResults
}

// readReply returns false for what it does not read.
func readReply(data []byte) (m agentproto.Reply, ok bool) {
	if len(data) > agentproto.MaxMessageBytes {
		return m, false
	}
	s := scanner{data: data}
	s.object(func(name []byte) {
		switch string(name) {
		case "instance":
			m.Instance = s.text()
		case "refused":
			m.Refused = s.text()
		case "message":
			m.Message = s.text()
		case "items":
			s.once(m.Items == nil)
			m.Items = make([]agentproto.ReplyItem, 0, 1)
			s.array(func() { m.Items = append(m.Items, s.replyItem()) })
		default:
			s.header(name, &m.Header)
		}
	})
	return m, s.complete() && m.Type == agentproto.TypeReply
}

func (s *scanner) header(name []byte, h *agentproto.Header) {
	switch string(name) {
	case "type":
		h.Type = s.text()
	case "id":
		h.ID = s.text()
	case "sent":
		s.moment(&h.Sent)
	default:
		s.failed = true
	}
}

func (s *scanner) replyItem() (item agentproto.ReplyItem) {
	s.object(func(name []byte) {
		switch string(name) {
		case "item":
			item.Item = int(s.integer())
		case "result":
			s.once(item.Result == nil)
			result := s.result()
			item.Result = &result
		default:
			s.failed = true
		}
	})
	return item
}

func (s *scanner) result() (r agentproto.Result) {
	s.object(func(name []byte) {
		switch string(name) {
		case "item":
			r.Item = int(s.integer())
		case "code":
			r.Code = int(s.integer())
		case "reason":
			r.Reason = s.text()
		case "message":
			r.Message = s.text()
		case "warnings":
			s.once(r.Warnings == nil)
			r.Warnings = make([]string, 0, 1)
			s.array(func() { r.Warnings = append(r.Warnings, s.text()) })
		case "status":
			s.once(r.Status == nil)
			r.Status = s.status()
		case "accepted_at":
			s.moment(&r.AcceptedAt)
		case "started_at":
			s.moment(&r.StartedAt)
		case "finished_at":
			s.moment(&r.FinishedAt)
		default:
			s.failed = true
		}
	})
	return r
}

func (s *scanner) status() *agentproto.Status {
	st := new(agentproto.Status)
	s.object(func(name []byte) {
		switch string(name) {
		case "running":
			st.Running = s.boolean()
		case "supervised":
			st.Supervised = s.boolean()
		case "utc_offset_s":
			st.UTCOffset = int(s.integer())
		case "pid":
			st.PID = int(s.integer())
		case "threads":
			st.Threads = int(s.integer())
		case "elapsed_ms":
			st.ElapsedMS = s.integer()
		case "user_ms":
			st.UserMS = s.integer()
		case "system_ms":
			st.SystemMS = s.integer()
		case "memory_bytes":
			st.MemoryBytes = s.integer()
		case "host_free_kb":
			st.HostFreeKB = s.integer()
		case "failures":
			st.Failures = int(s.integer())
		case "cpu":
			st.CPU = s.float()
		case "cpu_average":
			st.CPUAverage = s.float()
		case "memory_percent":
			st.MemoryPercent = s.float()
		default:
			s.statusText(name, st)
		}
	})
	return st
}

func (s *scanner) statusText(name []byte, st *agentproto.Status) {
	switch string(name) {
	case "at":
		s.moment(&st.At)
	case "started_at":
		s.moment(&st.StartedAt)
	case "registered_at":
		s.moment(&st.RegisteredAt)
	case "last_started_at":
		s.moment(&st.LastStartedAt)
	case "next_retry_at":
		s.moment(&st.NextRetryAt)
	case "phase":
		st.Phase = s.text()
	case "agent_id":
		st.AgentID = s.text()
	case "command":
		st.Command = s.text()
	case "stat":
		st.Stat = s.text()
	case "version":
		st.Version = s.text()
	case "health":
		st.Health = s.text()
	case "evidence":
		st.Evidence = s.text()
	default:
		s.failed = true
	}
}

// scanner reads compact JSON from the beginning. Once it has failed it reads
// nothing more, and what it returned means nothing.
type scanner struct {
	data   []byte
	at     int
	failed bool
}

// complete reports whether all of the data was read.
func (s *scanner) complete() bool { return !s.failed && s.at == len(s.data) }

// once fails for a field that comes again: how it adds to the first is for
// encoding/json to say.
func (s *scanner) once(first bool) { s.failed = s.failed || !first }

// next takes c if it comes next.
func (s *scanner) next(c byte) bool {
	if s.failed || s.at >= len(s.data) || s.data[s.at] != c {
		return false
	}
	s.at++
	return true
}

func (s *scanner) must(c byte) { s.failed = !s.next(c) || s.failed }

// object calls field for each field, which has to read the value.
func (s *scanner) object(field func(name []byte)) {
	s.must('{')
	if s.next('}') {
		return
	}
	for !s.failed {
		name := s.raw()
		s.must(':')
		field(name)
		if !s.next(',') {
			s.must('}')
			return
		}
	}
}

// array calls element for each element, which has to read it.
func (s *scanner) array(element func()) {
	s.must('[')
	if s.next(']') {
		return
	}
	for !s.failed {
		element()
		if !s.next(',') {
			s.must(']')
			return
		}
	}
}

func (s *scanner) text() string { return string(s.raw()) }

// raw returns the inside of a string without escapes.
func (s *scanner) raw() []byte {
	s.must('"')
	for begin := s.at; s.at < len(s.data) && !s.failed; s.at++ {
		switch c := s.data[s.at]; {
		case c == '"':
			s.at++
			return s.data[begin : s.at-1]
		case c == '\\', c < ' ', c >= utf8.RuneSelf:
			s.failed = true
		}
	}
	s.failed = true
	return nil
}

func (s *scanner) moment(t *time.Time) {
	if text := s.raw(); s.failed || t.UnmarshalText(text) != nil {
		s.failed = true
	}
}

func (s *scanner) boolean() bool {
	for _, word := range [...]string{"true", "false"} {
		if end := s.at + len(word); !s.failed && end <= len(s.data) && string(s.data[s.at:end]) == word {
			s.at = end
			return word == "true"
		}
	}
	s.failed = true
	return false
}

// number returns the text of a number, of which JSON allows fewer forms than
// strconv does: no leading zeros, no plus, digits around the point.
func (s *scanner) number() string {
	begin := s.at
	s.next('-')
	if !s.next('0') {
		s.digits()
	}
	if s.next('.') {
		s.digits()
	}
	if s.failed {
		return ""
	}
	return string(s.data[begin:s.at])
}

func (s *scanner) digits() {
	begin := s.at
	for s.at < len(s.data) && '0' <= s.data[s.at] && s.data[s.at] <= '9' {
		s.at++
	}
	s.failed = s.failed || s.at == begin
}

func (s *scanner) integer() int64 {
	n, err := strconv.ParseInt(s.number(), 10, 64)
	s.failed = s.failed || err != nil
	return n
}

func (s *scanner) float() float64 {
	f, err := strconv.ParseFloat(s.number(), 64)
	s.failed = s.failed || err != nil
	return f
}
