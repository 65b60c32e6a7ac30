// Package pressure tests that procfleet keeps its memory bounded, answers and
// loses nothing while far more is offered than its stores take.
package pressure
