#!/usr/bin/env bash
# The packages of Debian that each task needs; every script and the devcontainer take them from here.
# Sourced, it only defines the lists. Run, it installs the lists that it is given:
#
#   scripts/packages.sh [build] [test] [all] [check]
#
#   build   what compiles the product and runs a server
#   test    the short run of scripts/test.sh
#   all     what only the long run, scripts/test.sh --all, needs
#   check   scripts/check.sh

pg_major=${OUTBOX_PG_MAJOR:-15} # of the packages; another server is chosen by PG_CONFIG

build_packages=(g++ cmake ninja-build pkg-config libpq-dev libcurl4-openssl-dev libnghttp2-dev libjsoncpp-dev libssl-dev libcli11-dev
    libtomlplusplus-dev libncurses-dev libcpp-httplib-dev "postgresql-$pg_major" "postgresql-server-dev-$pg_major" "postgresql-client-$pg_major")
# Sources and sinks of the client and the relay that have a library of their own.
library_packages=(libgrpc++-dev libprotobuf-dev protobuf-compiler librdkafka-dev librabbitmq-dev)
unit_packages=("${library_packages[@]}" libgtest-dev libgmock-dev)
sanitizer_packages=(clang-16 libclang-rt-16-dev)
system_packages=(python3-pytest python3-pytest-xdist python3-psycopg python3-prometheus-client procps openssl curl patch)
broker_packages=(nginx-light mosquitto rabbitmq-server python3-pika systemd pgbouncer nats-server redis-server python3-venv)
long_packages=(prometheus python3-selenium ruby ruby-activerecord ruby-pg)
check_packages=(clang-format shellcheck python3-venv)
