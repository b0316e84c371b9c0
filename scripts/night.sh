#!/bin/sh
# Find and remove a stuck holder: three processes compete for one lock, and its
# holder is stuck. ls finds the lock, inspect shows the holder, unlock force-unlocks
# it, and the stuck process is notified.
#
#   sh scripts/night.sh          starts its own redis-server
#   LEASEHOLD_REDIS_URL=redis://… sh scripts/night.sh
#
# It needs leasehold and redis-cli on the PATH; without a URL, redis-server as well.
set -eu

dir=$(mktemp -d)
lock=orders:42
pids=
finish() {
	for pid in $pids; do kill "$pid" 2>/dev/null || true; done
	wait
	rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT TERM

redis() {
	case $LEASEHOLD_REDIS_URL in
	unix://*) redis-cli -s "${LEASEHOLD_REDIS_URL#unix://}" "$@" ;;
	*) redis-cli -u "$LEASEHOLD_REDIS_URL" "$@" ;;
	esac
}
step() {
	printf '\n$'
	for word; do
		case $word in
		*' '*) printf " '%s'" "$word" ;;
		*) printf ' %s' "$word" ;;
		esac
	done
	echo
	"$@"
}
# await COMMAND waits until it prints something, for at most 20 s.
await() {
	tries=0
	until [ -n "$("$@" 2>/dev/null)" ]; do
		tries=$((tries + 1))
		[ $tries -lt 400 ] || { echo "night.sh: in vain: $*" >&2; exit 1; }
		sleep 0.05
	done
}
# now prints the time in milliseconds, or whole seconds as milliseconds where date does not support
# %N.
cat >"$dir/now" <<'END'
#!/bin/sh
now=$(date +%s%3N)
case $now in *N) now=$(date +%s)000 ;; esac
echo "$now"
END
chmod +x "$dir/now"

if [ -z "${LEASEHOLD_REDIS_URL:-}" ]; then
	export LEASEHOLD_REDIS_URL="unix://$dir/redis.sock"
	redis-server --port 0 --unixsocket "$dir/redis.sock" --save '' --daemonize no >"$dir/redis.log" &
	pids="$pids $!"
	await redis ping
fi

# Three processes. The first holds the lock and never releases it.
cat >"$dir/import-orders" <<'END'
#!/bin/sh
trap '"${0%/*}/now" >"$1"; exit 1' TERM
while :; do sleep 0.01; done # stuck
END
printf '#!/bin/sh\necho "ship-orders runs"\n' >"$dir/ship-orders"
printf '#!/bin/sh\necho "bill-orders runs"\n' >"$dir/bill-orders"
chmod +x "$dir/import-orders" "$dir/ship-orders" "$dir/bill-orders"

leasehold run --lease 3s $lock -- "$dir/import-orders" "$dir/notified" >"$dir/1" 2>&1 &
stuck=$!
pids="$pids $stuck"
await redis exists $lock
await leasehold ls $lock -o name
for job in ship-orders bill-orders; do
	leasehold run $lock -- "$dir/$job" >"$dir/$job.out" 2>&1 &
	pids="$pids $!"
done
waits() { leasehold inspect $lock -o json | grep -o '"waiting": 2'; }
await waits
# A client is notified of a force-unlock once it has held a lock for a second.
await redis pubsub channels 'leasehold_client:*'

echo "Orders have stopped. Who holds the lock?"
step leasehold ls
step leasehold inspect $lock
began=$("$dir/now")
step leasehold unlock $lock --yes --operator alice --reason 'stuck, ticket 815'
code=0
wait "$stuck" || code=$?
await cat "$dir/notified"
printf '\nThe stuck process ended with %s, and printed:\n' "$code"
cat "$dir/1"
printf 'It was notified %s ms after the operator pressed Enter.\n' $(($(cat "$dir/notified") - began))
await cat "$dir/ship-orders.out"
await cat "$dir/bill-orders.out"
free() { leasehold inspect $lock | grep ': free'; }
await free # a command ends before its lock is released
echo "The others continued:"
cat "$dir/ship-orders.out" "$dir/bill-orders.out"
step leasehold inspect $lock
