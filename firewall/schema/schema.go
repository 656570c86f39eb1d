// Package schema holds the JSON Schemas of the files that people write.
package schema

import _ "embed"

// Policy is the JSON Schema (draft 2020-12) of a policy file.
//
//go:embed policy.schema.json
var Policy []byte

// Gateway is the JSON Schema (draft 2020-12) of the gateway's configuration.
//
//go:embed gateway.schema.json
var Gateway []byte

// Pipeline is the JSON Schema (draft 2020-12) of a pipeline file.
//
//go:embed pipeline.schema.json
var Pipeline []byte
