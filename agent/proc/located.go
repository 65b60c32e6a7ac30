package proc

// located is one process with the paths by which a search finds it. What it is
// besides is read of those alone whose paths are right.
type located struct {
	pid      int
	exe, cwd string // "" when unreadable
	hidden   bool   // neither may be read
}
