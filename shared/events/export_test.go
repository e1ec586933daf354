package events

// DecodeWhole is Decode by encoding/json alone.
var DecodeWhole = decode

// Unquote reads a long string.
var Unquote = unquote
