// Package fleet runs a whole procfleet in containers with addresses of their
// own, and breaks it: each node can be killed, paused, cut off, slowed down and
// restarted. It knows docker and the kernel's networking, and needs root. What
// goes wrong in the fleet is for others to find out. Only tests import it.
package fleet
