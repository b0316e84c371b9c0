// Package howto is the code of the how-tos next to it. Its tests run it, and a test of package docs
// finds each block of a page in it.
package howto
