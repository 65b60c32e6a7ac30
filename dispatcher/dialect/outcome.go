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
	code    procfleet.Code
	message string
	content *content // nil is ""
}

// outcomes returns what the items of one chunk came to, one entry per key in
// the order of the keys' first items. Where one request named a key more than
// once, the last item is shown.
func outcomes(items []procfleet.ItemResult) []outcome {
	found := make([]outcome, 0, len(items))
	at := make(map[string]int, len(items))
	for i := range items {
		o := outcomeOf(&items[i])
		if first, again := at[o.key]; again {
			found[first] = o
			continue
		}
		at[o.key] = len(found)
		found = append(found, o)
	}
	return found
}

func outcomeOf(it *procfleet.ItemResult) outcome {
	o := outcome{key: resultKey(it), code: resultCode(it)}
	o.message = resultMessage(it, o.code)
	switch o.code {
	case procfleet.CodeRunning, procfleet.CodeAgentAbnormal, procfleet.CodeUnknownAction:
		// These codes say that nobody looked at the process.
	default:
		o.content = contentOf(it, o.message)
	}
	return o
}

// resultKey is the key that callers expect: host first for processes with a
// namespace and a name, index key first for the others. It depends only on
// what was asked, so it is the same at every poll and whoever asks.
func resultKey(it *procfleet.ItemResult) string {
	if it.Spec.Namespace != "" || it.Spec.Name != "" {
		return it.Item.Target.Key() + ":" + it.Spec.Key()
	}
	return it.Spec.Key() + ":" + it.Item.Target.Key()
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

// writeOutcomes writes the result map, entry by entry as the chunks come, and
// reports whether an entry in it is still open.
func writeOutcomes(
	w io.Writer, chunks iter.Seq2[[]procfleet.ItemResult, error], entry func(rendered, *outcome) rendered,
) (open bool, err error) {
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
			buf = entry(append(buf.quote(o.key), ':'), o)
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
func gseEntry(b rendered, o *outcome) rendered { return append(gseResult(b, o), '}') }

// gseEntryBothNames is the entry of get_proc_operate_result, of which two
// descriptions with different names were published.
func gseEntryBothNames(b rendered, o *outcome) rendered {
	b = gseResult(b, o).number("errcode", int64(o.code)).text("errmsg", o.message)
	return append(b, '}')
}

func gseResult(b rendered, o *outcome) rendered {
	b = append(b, '{')
	b = b.number("error_code", int64(o.code)).text("error_msg", o.message).name("content")
	if o.content == nil {
		return append(b, `""`...)
	}
	const ordinary = 1 << 10 // bytes, which then need no memory of their own
	return appendQuoted(b, o.content.render(make(rendered, 0, ordinary)))
}

// gseOutcomes writes GSE's answer to a poll.
func gseOutcomes(entry func(rendered, *outcome) rendered) func(io.Writer, string, iter.Seq2[[]procfleet.ItemResult, error]) error {
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
