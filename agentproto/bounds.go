package agentproto

import (
	"encoding/json"
	"strings"
)

// Bounded returns a copy of r within [MaxMessage] and [MaxResult] that is valid
// UTF-8. It truncates the message first. If the result is still too large, it
// shortens the long texts of Status, and then replaces the warnings.
func (r Result) Bounded() Result {
	r.Message = clip(r.Message, MaxMessage)
	if r.encodedSize() <= MaxResult {
		return r
	}
	if r.Status != nil {
		short := *r.Status
		for _, text := range []*string{&short.Command, &short.Version, &short.Health, &short.Evidence, &short.Phase, &short.Stat, &short.AgentID} {
			*text = clip(*text, 512)
		}
		r.Status = &short
	}
	if r.encodedSize() <= MaxResult {
		return r
	}
	r.Warnings = []string{"warnings left out: the result was too large"}
	if r.encodedSize() > MaxResult { // control characters are encoded in six bytes each
		r.Message = clip(r.Message, MaxMessage/4)
	}
	return r
}

func (r *Result) encodedSize() int {
	data, err := json.Marshal(r)
	if err != nil {
		return MaxResult + 1
	}
	return len(data)
}

// clip returns s as valid UTF-8 of at most limit bytes.
func clip(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.ToValidUTF8(s[:min(limit, len(s))], "")
}
