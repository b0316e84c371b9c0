#!/usr/bin/env sh
# Checks every external link of the pages. It is not part of CI, which must not fail when another site is down.
# Package docs tests the links inside the repository.
#
#	sh scripts/links.sh             all pages
#	sh scripts/links.sh README.md   some
set -eu
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- $(git ls-files '*.md')
dead=0
total=0
for url in $(grep -ohE '\]\(https://[^) ]+' "$@" | sed 's/^](//; s/#.*//' | sort -u); do
	total=$((total + 1))
	# Some servers reply 403 or 405 to a HEAD, or to curl's User-Agent.
	code=$(curl -sSL -o /dev/null -A 'Mozilla/5.0 (link check)' --max-time 20 --retry 2 -w '%{http_code}' "$url" 2>/dev/null) || true
	case $code in
	2??) ;;
	*)
		dead=$((dead + 1))
		echo "$code $url in $(grep -lF "$url" "$@" | tr '\n' ' ')"
		;;
	esac
done
echo "links: $dead of $total do not answer"
[ "$dead" -eq 0 ]
