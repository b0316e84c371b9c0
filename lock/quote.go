package lock

import "strconv"

// quoteMax bounds what a hostile or mistaken name can do to a log line.
const quoteMax = 128

func quote(name string) string {
	if len(name) > quoteMax {
		return strconv.Quote(name[:quoteMax]) + "…"
	}
	return strconv.Quote(name)
}
