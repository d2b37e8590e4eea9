#!/bin/sh
# Everything a benchmark needs, and then the benchmark: bench/run.sh [--quick] [figure ...]
# Installs what is missing (as root), builds into $OUTBOX_BUILD (default: build), runs bench/run.py.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
build=${OUTBOX_BUILD:-$root/build}
version=15
packages="cmake ninja-build g++ pkg-config libpq-dev libcurl4-openssl-dev libnghttp2-dev libssl-dev librdkafka-dev libmosquitto-dev mosquitto librabbitmq-dev rabbitmq-server libnats-dev nats-server libhiredis-dev
    postgresql-$version postgresql-server-dev-$version postgresql-$version-pgq3
    nginx-light wrk nghttp2-client redis-server python3 python3-psycopg python3-matplotlib"

missing=
for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' ||
        missing="$missing $package"
done
if [ -n "$missing" ]; then
    if [ "$(id -u)" != 0 ]; then
        echo "Packages are missing. As root: apt-get install$missing" >&2
        exit 1
    fi
    echo "Installing$missing"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $missing
fi

cmake -S "$root" -B "$build" -G Ninja -D OUTBOX_BENCH=ON \
    -D PG_CONFIG="/usr/lib/postgresql/$version/bin/pg_config" >/dev/null
cmake --build "$build"
exec /usr/bin/python3 "$root/bench/run.py" --build "$build" "$@"
