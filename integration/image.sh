#!/bin/sh
# Builds a container image from this machine's redis-server and the libraries that it
# needs, and nothing else, for machines that cannot pull an image.
#
# usage: image.sh TAG [BINARY]
set -eu

tag=$1
server=$(command -v "${2:-redis-server}" || command -v valkey-server) || {
	echo "image.sh: no redis-server on the PATH; scripts/redis-server.sh installs it" >&2
	exit 1
}

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/usr/bin" "$root/data"
cp -L "$server" "$root/usr/bin/redis-server"
# "libc.so.6 => /lib/libc.so.6 (0x7f…)", and for the loader "/lib64/ld-linux.so.2 (0x7f…)"
for library in $(ldd "$server" | sed -n 's/^[^/]*\(\/[^ ]*\) (0x.*/\1/p'); do
	mkdir -p "$root$(dirname "$library")"
	cp -L "$library" "$root$library"
done

# The engine keeps owners and permissions: the files must belong to root and be readable by all users.
chmod -R go+rX "$root"
tar -C "$root" --owner=0 --group=0 -c . | docker import \
	--change 'ENV PATH=/usr/bin' \
	--change 'WORKDIR /data' \
	--change 'EXPOSE 6379' \
	--change 'CMD ["redis-server", "--protected-mode", "no"]' \
	- "$tag" >/dev/null
