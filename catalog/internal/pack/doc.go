// Package pack encodes specs, reports, groups, templates and topologies for the
// catalogs, so that every catalog writes the same bytes.
package pack
