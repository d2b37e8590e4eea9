#!/usr/bin/env bash
# The packages of Debian that each task needs. Every script and the devcontainer take them from here.
#
#   scripts/packages.sh [LIST...]     installs them; default: all lists
#
# Sourced, it defines the lists and need_packages.

pg_major=${OUTBOX_PG_MAJOR:-15} # of the packages; another server is chosen by PG_CONFIG

# What compiles the product and runs a server.
build_packages=(g++ cmake ninja-build pkg-config libpq-dev libcurl4-openssl-dev libnghttp2-dev libjsoncpp-dev libssl-dev libcli11-dev
    libtomlplusplus-dev libncurses-dev libcpp-httplib-dev "postgresql-$pg_major" "postgresql-server-dev-$pg_major" "postgresql-client-$pg_major")
# What some sinks and sources need.
library_packages=(libgrpc++-dev libprotobuf-dev protobuf-compiler librdkafka-dev librabbitmq-dev)
unit_packages=(libgtest-dev libgmock-dev)
sanitizer_packages=(clang-16 libclang-rt-16-dev)
system_packages=(python3-pytest python3-pytest-xdist python3-psycopg python3-prometheus-client procps openssl curl patch)
# Brokers and proxies, and what installs those that are not packages of Debian (scripts/test/servers.sh).
broker_packages=(nginx-light mosquitto rabbitmq-server python3-pika systemd pgbouncer nats-server redis-server python3-venv)
# Peers of the long run only.
long_packages=(prometheus python3-selenium ruby ruby-activerecord ruby-pg)
# Libraries of others that a server may load beside ours (tests/world/test_libraries.py). Not every release has them all.
neighbour_packages=()
for name in pgaudit pgauditlogtofile pg-stat-kcache pg-qualstats pg-wait-sampling cron pglogical pgl-ddl-deploy partman pgextwlist \
    pldebugger powa set-user; do
    neighbour_packages+=("postgresql-$pg_major-$name")
done
check_packages=(clang-format shellcheck python3-venv git)

# Installs missing packages. Scripts that run side by side do so one after the other.
need_packages() {
    local missing=() package as_root=()
    for package; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    printf '%s\n' "installing ${missing[*]}" >&2
    ( # Servers that packages start must not keep the lock.
        flock 9
        "${as_root[@]}" apt-get update -qq 9>&-
        DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq "${missing[@]}" >/dev/null 9>&-
    ) 9>"${TMPDIR:-/tmp}/pg_outbox-packages-$UID"
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -euo pipefail
    [ $# -gt 0 ] || set -- build library unit sanitizer system broker long check
    for name; do
        declare -n list="${name}_packages"
        need_packages "${list[@]}"
    done
fi
