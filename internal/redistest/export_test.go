package redistest

// ReadFrame is open to the fuzz test.
var ReadFrame = readFrame
