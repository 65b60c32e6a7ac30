package bench

// pause does nothing on Windows: benchmarks that suspend processes also start Redis, which
// does not run on Windows.
func (c *child) pause() {}

func (c *child) goOn() {}
