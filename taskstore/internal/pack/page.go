package pack

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/taskstore"
)

// Page selects the items of one page from the marks of a task, in the order that
// [taskstore.ResultQuery] defines. It returns their indexes and the cursor of the next
// page.
func Page(marks []byte, q taskstore.ResultQuery) (items []int, next string, err error) {
	order := procfleet.States()
	if q.State != "" {
		order = []procfleet.State{q.State}
	}
	after := -1
	if q.Cursor != "" {
		var state procfleet.State
		if state, after, err = readCursor(q.Cursor); err != nil {
			return nil, "", err
		}
		at := slices.Index(order, state)
		if at < 0 || after >= len(marks) {
			return nil, "", fmt.Errorf("%w: it belongs to another query", taskstore.ErrCursor)
		}
		order = order[at:]
	}
	limit := Limit(q.Limit)
	for _, state := range order {
		for i := nextOf(marks, state, after+1); i < len(marks); i = nextOf(marks, state, i+1) {
			if len(items) == limit {
				return items, next, nil
			}
			items = append(items, i)
			next = string(state) + ":" + strconv.Itoa(i)
		}
		after = -1
	}
	return items, "", nil
}

// nextOf returns the first item from begin on that has the state, or len(marks) if
// there is none.
func nextOf(marks []byte, state procfleet.State, begin int) int {
	found := len(marks)
	for _, m := range []byte(Marks(state)) {
		if i := bytes.IndexByte(marks[begin:found], m); i >= 0 {
			found = begin + i
		}
	}
	return found
}

// readCursor parses a cursor, "<state>:<item>", which names the last item of the
// previous page.
func readCursor(s string) (procfleet.State, int, error) {
	state, item, _ := strings.Cut(s, ":")
	n, err := strconv.Atoi(item)
	if err != nil || n < 0 || Marks(procfleet.State(state)) == "" {
		return "", 0, fmt.Errorf("%w: %.40q; use the cursor of the page before", taskstore.ErrCursor, s)
	}
	return procfleet.State(state), n, nil
}

// Limit restricts the size of a page to 1 to 1000.
func Limit(n int) int { return min(max(n, 1), 1000) }
