// Package guides is the code of the guides next to it. Its tests run it, and a test of package docs
// finds each block of a page in it.
package guides
