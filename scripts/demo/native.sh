# The demo with the extension: workers of the server deliver and process. To be sourced by demo.sh.

sql() { psql -X -q -At -v ON_ERROR_STOP=1 -d "$@"; }

set_up() {
    mkdir -p "$directory/stage"
    {
        stage_build "$directory/stage"
        echo "listen_addresses = ''"
        echo "unix_socket_directories = '$directory'"
        echo "max_worker_processes = 32" # room for experiments with --keep
    } >"$directory/settings"
    start_server "$directory" <"$directory/settings"
    export PGHOST=$directory PGUSER=postgres PGOPTIONS='-c client_min_messages=warning'
    sql postgres -c 'CREATE DATABASE shop' -c 'CREATE DATABASE catalog'
    sql catalog -c 'CREATE EXTENSION pg_inbox' -f "$repository/scripts/demo/catalog.sql" \
        -c 'CREATE ROLE writer LOGIN' -c "SELECT inbox.grant_send('writer')" >/dev/null
    sql shop -c 'CREATE EXTENSION pg_outbox' -f "$repository/scripts/demo/shop.sql" \
        -c "CREATE SERVER catalog FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'postgresql://writer@/catalog')"
}

kill_relay() { sql shop -c "SELECT pg_terminate_backend(pid) FROM outbox.status" >/dev/null; }

show_latency() {
    sql catalog -F ' ' -c "SELECT 'from commit to applied: half within', latency_p50, '99 of 100 within', latency_p99
                             FROM inbox.status" >&2
}

stop_programs() { :; }
