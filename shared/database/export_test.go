package database

// Quiet is quiet, for its test.
var Quiet = quiet
