// Package fleet runs a whole procfleet in containers with separate addresses, and
// causes faults: it can kill, pause, disconnect, delay and restart each node. It
// uses docker and the kernel's networking, and needs root. Its callers check the
// effects of the faults. Only tests import it.
package fleet
