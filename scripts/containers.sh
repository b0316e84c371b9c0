#!/bin/sh
# Runs a command that needs a container engine and an image of Redis:
#
#	containers.sh go test -run TestContainer ./...
#
# It uses the engine that `docker` reaches. Without one, it installs Docker. If that starts no
# service, it runs its own daemon while the command runs. The image is $LEASEHOLD_REDIS_IMAGE;
# without one, it is built from the redis-server of this machine, so that nothing has to be
# downloaded.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }
say() { echo "containers.sh: $*" >&2; }
engine() { docker version >/dev/null 2>&1; }

root() {
	if [ "$(id -u)" -eq 0 ]; then
		env "$@"
	elif have sudo; then
		sudo -n env "$@"
	else
		say "cannot run \"$*\": not root, and there is no sudo"
		return 1
	fi
}

install() {
	for manager in apt-get dnf yum apk; do
		have "$manager" || continue
		say "installing Docker with $manager"
		case $manager in
		apt-get)
			root apt-get update || say "apt-get update failed; going on with the old lists"
			root DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends docker.io
			;;
		dnf | yum) root "$manager" install -y moby-engine || root "$manager" install -y docker ;;
		apk) root apk add --no-cache docker ;;
		esac </dev/null >&2
		return
	done
	return 1
}

dir=
pid=
# Containers stop with the daemon, and all files are deleted with the directory, but network
# interfaces created by tests would remain.
stop() {
	if [ -n "$pid" ]; then
		for network in $(docker network ls --quiet --filter type=custom 2>/dev/null); do
			docker network rm "$network" >/dev/null 2>&1 || true
		done
		kill "$pid" 2>/dev/null && wait "$pid" || true
		umount "$dir"/exec/netns/* 2>/dev/null || true # of containers on the host network
	fi
	[ -z "$dir" ] || rm -rf "$dir"
}

# daemon starts a private daemon and waits until it responds.
daemon() {
	if [ "$(id -u)" -ne 0 ]; then
		say "no container engine runs, and starting one takes root"
		return 1
	fi
	dir=$(mktemp -d /tmp/leasehold-docker.XXXXXX)
	trap stop EXIT
	trap 'exit 130' INT TERM
	export DOCKER_HOST="unix://$dir/docker.sock"
	dockerd --host "$DOCKER_HOST" --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/pid" >"$dir/log" 2>&1 &
	pid=$!
	tries=0
	until engine; do
		tries=$((tries + 1))
		if [ "$tries" -gt 300 ] || ! kill -0 "$pid" 2>/dev/null; then
			say "the daemon does not answer. It said:"
			tail -n 20 "$dir/log" >&2
			return 1
		fi
		sleep 0.1
	done
}

if ! engine; then
	have dockerd || install
	engine || daemon
fi

if [ -z "${LEASEHOLD_REDIS_IMAGE:-}" ]; then
	export LEASEHOLD_REDIS_IMAGE=leasehold-redis:local
	sh "$(dirname "$0")/../integration/image.sh" "$LEASEHOLD_REDIS_IMAGE" "${LEASEHOLD_REDIS_SERVER:-redis-server}"
fi
# Ryuk, the container that cleans up after crashed tests, would have to be downloaded.
export TESTCONTAINERS_RYUK_DISABLED="${TESTCONTAINERS_RYUK_DISABLED:-true}"

"$@"
