// Package openapi describes the HTTP API as an OpenAPI 3.1 document and, from the same
// data, as an HTML page.
//
// Paths, methods and failures are generated from the dialects, so they are always up to
// date. Schemas, texts and examples are read from one file per dialect, <dialect>.yaml.
// Schemas of the native API are derived from the types of package v1; the file adds
// descriptions and constraints.
package openapi
