package redistest

// ReadFrame exports readFrame for the fuzz test.
var ReadFrame = readFrame
