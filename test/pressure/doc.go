// Package pressure tests that procfleet limits its memory, responds and loses
// nothing under far more load than its stores accept.
package pressure
