package bench

// suspend does nothing on Windows: benchmarks that suspend processes also start Redis, which
// does not run on Windows.
func (c *child) suspend() {}

func (c *child) resume() {}
