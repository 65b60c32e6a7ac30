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

// outcomes returns what the items of one chunk came to, one entry per key in
// the order of the keys' first items. Where one request named a key more than
// once, the last item is shown.
func outcomes(items []procfleet.ItemResult) []outcome {
	found := make([]outcome, 0, len(items))
	at := make(map[string]int, len(items))
	var key []byte
	for i := range items {
		it := &items[i]
		code := resultCode(it)
		o := outcome{item: it, code: code, message: resultMessage(it, code)}
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

// appendKey appends the key that callers expect: host first for processes with
// a namespace and a name, index key first for the others. It depends only on
// the request, so it is the same at every poll and for every caller.
func appendKey(b []byte, it *procfleet.ItemResult) []byte {
	if it.Spec.Namespace != "" || it.Spec.Name != "" {
		return it.Spec.AppendKey(append(it.Item.Target.AppendKey(b), ':'))
	}
	return it.Item.Target.AppendKey(append(it.Spec.AppendKey(b), ':'))
}

// content returns what the entry shows of the process, made by d; nil is "".
func (o *outcome) content(d *describer) *content {
	switch o.code {
	case procfleet.CodeRunning, procfleet.CodeAgentAbnormal, procfleet.CodeUnknownAction:
		return nil // these codes mean that no probe of the process was made
	default:
		return d.describe(o.item, o.message)
	}
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

// resultMessage keeps what software reads in messages: "success" exactly for
// success, "handling" while there is none, and, after a failed check, the
// action as the first word.
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

// renderEntry appends an entry of a dialect's result map; a nil content is "".
type renderEntry func(b rendered, o *outcome, c *content) rendered

// writeOutcomes writes the result map, entry by entry as the chunks come, and
// reports whether an entry in it is still open.
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
			buf = entry(append(buf.quote(o.key), ':'), o, o.content(&d))
		}
		if _, err := w.Write(buf); err != nil {
			return false, err
		}
		buf = buf[:0]
	}
	_, err = w.Write(append(buf, '}'))
	return open, err
}

// gseEntry appends an entry of GSE's result maps. Content is JSON in a string.
func gseEntry(b rendered, o *outcome, c *content) rendered { return append(gseResult(b, o, c), '}') }

// gseEntryBothNames is the entry of get_proc_operate_result, of which two
// descriptions with different names were published.
func gseEntryBothNames(b rendered, o *outcome, c *content) rendered {
	b = gseResult(b, o, c).number("errcode", int64(o.code)).text("errmsg", o.message)
	return append(b, '}')
}

func gseResult(b rendered, o *outcome, c *content) rendered {
	b = append(b, '{')
	b = b.number("error_code", int64(o.code)).text("error_msg", o.message).name("content")
	if c == nil {
		return append(b, `""`...)
	}
	return c.render(b).quoteFrom(len(b))
}

// gseOutcomes writes GSE's answer to a poll.
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
