// Package images builds container images from files of this machine, so that tests
// need no registry: binaries of this module, and programs with their libraries.
// Only tests import it.
package images
