package lock

import "strconv"

// quoteMax bounds how much of a log line a hostile or mistaken name can fill.
const quoteMax = 128

func quote(name string) string {
	if len(name) > quoteMax {
		return strconv.Quote(name[:quoteMax]) + "…"
	}
	return strconv.Quote(name)
}
