package templates

// spans are the rows that a column keeps, in their new order: runs of old rows
// [first, end). Rows in none of them are removed.
type spans [][2]int32

func spansOf(rows []int32) spans {
	var s spans
	for _, row := range rows {
		if last := len(s) - 1; last >= 0 && s[last][1] == row {
			s[last][1]++
		} else {
			s = append(s, [2]int32{row, row + 1})
		}
	}
	return s
}

// arranged returns the cells in the order of s, reusing their array if it can.
func arranged[E any](cells []E, s spans) []E {
	out := cells[:0]
	if !s.ascending() { // a cell would be overwritten before it is read
		out = make([]E, 0, len(cells))
	}
	for _, span := range s {
		out = append(out, cells[span[0]:span[1]]...)
	}
	clear(cells[len(out):])
	return out
}

func (s spans) ascending() bool {
	for i := 1; i < len(s); i++ {
		if s[i][0] < s[i-1][1] {
			return false
		}
	}
	return true
}
