// Package spelling finds the name that a misspelled word probably means.
package spelling

// maxWord is the maximum length of a word in bytes: longer words are similar to no name.
const maxWord = 64

// Nearest returns the name that is most similar to word, or "" if none is similar. Of
// several it returns the first in alphabetical order.
func Nearest(word string, names []string) string {
	if len(word) > maxWord {
		return ""
	}
	best, least := "", max(2, len(word)/3)+1
	for _, name := range names {
		if d := distance(word, name); d < least || d == least && best != "" && name < best {
			best, least = name, d
		}
	}
	return best
}

// distance returns the Levenshtein distance between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // distances of a prefix of a to each prefix of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
