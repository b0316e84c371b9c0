package luascripts

// Text returns the script of that name as a server gets it.
func Text(name string) string { return load(name).text }
