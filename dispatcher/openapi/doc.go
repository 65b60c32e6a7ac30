// Package openapi describes the HTTP API: as an OpenAPI 3.1 document for
// programs, and as one page for people that is made of the same.
//
// Paths, methods and failures come from the dialects themselves, so that they
// are never behind. What a dialect alone cannot tell, which is the schemas,
// the texts and the examples, is in the file named after it, <dialect>.yaml.
// Schemas of the native API are derived from the types of package v1; the file
// adds descriptions and constraints.
package openapi
