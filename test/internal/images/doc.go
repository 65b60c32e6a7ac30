// Package images builds container images from what is on this machine, so that
// tests need no registry: binaries of this module, and programs with the
// libraries that they need. Only tests import it.
package images
