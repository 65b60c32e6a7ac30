// Package peercred returns the user account of the peer of a local connection,
// according to the kernel. Data sent by the peer has no influence.
package peercred

import "runtime"

// Supported reports whether [UID] works on this system.
const Supported = runtime.GOOS == "linux"
