package doctor

// GroupTime is for tests.
var GroupTime = groupTime
