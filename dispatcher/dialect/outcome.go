package dialect

import (
	"io"
	"iter"
	"strings"

	"github.com/procfleet/procfleet"
)

// outcome is one entry of the published result maps.
type outcome struct {
	key     string
	item    *procfleet.ItemResult
	code    procfleet.Code
	message string
}

// outcomes returns the entries for the items of one chunk: one for each key, in the
// order in which the keys first occur. If several items have the same key, the entry is
// that of the last item.
func outcomes(items []procfleet.ItemResult) []outcome {
	found := make([]outcome, 0, len(items))
	at := make(map[string]int, len(items))
	var key []byte
	for i := range items {
		it := &items[i]
		code := resultCode(it)
		o := outcome{item: it, code: code, message: publishedNames(resultMessage(it, code))}
		key = appendKey(key[:0], it)
		if first, again := at[string(key)]; again {
			o.key = found[first].key
			found[first] = o
			continue
		}
		o.key = string(key)
		at[o.key] = len(found)
		found = append(found, o)
	}
	return found
}

// appendKey appends the key of an item in result maps: the host before the process if
// the process has a namespace or a name, otherwise the index key of the process before
// the host. The key depends only on the request, so every response for every caller has
// the same key.
func appendKey(b []byte, it *procfleet.ItemResult) []byte {
	if it.Spec.Namespace != "" || it.Spec.Name != "" {
		return it.Spec.AppendKey(append(it.Item.Target.AppendKey(b), ':'))
	}
	return it.Item.Target.AppendKey(append(it.Spec.AppendKey(b), ':'))
}

// described reports whether the entry has a content. The other codes mean that no probe
// of the process was made.
func (o *outcome) described() bool {
	return o.code != procfleet.CodeRunning && o.code != procfleet.CodeAgentAbnormal && o.code != procfleet.CodeUnknownAction
}

func resultCode(it *procfleet.ItemResult) procfleet.Code {
	switch {
	case !it.State.Final():
		return procfleet.CodeRunning
	case it.Result.Reason == "": // final without a result: its task was rejected
		return procfleet.CodeFailed
	}
	return it.Result.Code
}

// resultMessage returns the message of an item, of which callers parse three forms:
// "success" if and only if the item succeeded, "handling" if it has no result yet, and
// the action as the first word after a failed check.
func resultMessage(it *procfleet.ItemResult, code procfleet.Code) string {
	message := it.Result.Message
	switch {
	case code == procfleet.CodeSuccess:
		return "success"
	case code == procfleet.CodeRunning:
		return "handling"
	case message == "":
		return string(it.Item.Action) + ": " + string(it.State)
	case code == procfleet.CodeCheckFailed && !strings.HasPrefix(message, string(it.Item.Action)):
		return string(it.Item.Action) + ": " + message
	}
	return message
}

// renderEntry appends an entry of a dialect's result map. The content of an entry that is
// not described is "".
type renderEntry func(b rendered, o *outcome, d *describer) rendered

// writeOutcomes writes the result map, chunk by chunk, and reports whether any item is
// still running.
func writeOutcomes(
	w io.Writer, chunks iter.Seq2[[]procfleet.ItemResult, error], entry renderEntry,
) (open bool, err error) {
	var d describer
	buf := rendered{'{'}
	first := true
	for items, err := range chunks {
		if err != nil {
			return false, err
		}
		found := outcomes(items)
		for i := range found {
			o := &found[i]
			open = open || o.code == procfleet.CodeRunning
			if !first {
				buf = append(buf, ',')
			}
			first = false
			buf = entry(append(buf.quote(o.key), ':'), o, &d)
		}
		if _, err := w.Write(buf); err != nil {
			return false, err
		}
		buf = buf[:0]
	}
	_, err = w.Write(append(buf, '}'))
	return open, err
}

// gseEntry appends an entry of GSE's result maps. The content is a string that contains
// JSON.
func gseEntry(b rendered, o *outcome, d *describer) rendered { return append(gseResult(b, o, d), '}') }

// gseEntryBothNames appends an entry of get_proc_operate_result with the members of both
// published descriptions: error_code and errcode, error_msg and errmsg.
func gseEntryBothNames(b rendered, o *outcome, d *describer) rendered {
	b = gseResult(b, o, d).number("errcode", int64(o.code)).text("errmsg", o.message)
	return append(b, '}')
}

func gseResult(b rendered, o *outcome, d *describer) rendered {
	b = append(b, '{')
	b = b.number("error_code", int64(o.code)).text("error_msg", o.message).name("content")
	if !o.described() {
		return append(b, `""`...)
	}
	return d.content(b, o.item, o.message).quoteFrom(len(b))
}

// gseOutcomes returns the function that writes GSE's response to a poll.
func gseOutcomes(entry renderEntry) func(io.Writer, string, iter.Seq2[[]procfleet.ItemResult, error]) error {
	return func(w io.Writer, requestID string, chunks iter.Seq2[[]procfleet.ItemResult, error]) error {
		head, err := appendJSON([]byte(`{"result":true,"code":0,"message":"success","request_id":`), requestID)
		if err != nil {
			return err
		}
		if _, err := w.Write(append(head, `,"data":`...)); err != nil {
			return err
		}
		if _, err := writeOutcomes(w, chunks, entry); err != nil {
			return err
		}
		_, err = w.Write([]byte{'}'})
		return err
	}
}
