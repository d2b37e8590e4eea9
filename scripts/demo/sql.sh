# The demo with the SQL edition: the server loads no library, both databases belong to plain roles,
# and outbox-relay delivers. Passwords are in a file that only we can read. To be sourced by demo.sh.

relay=
applier=

sql() { psql -X -q -At -v ON_ERROR_STOP=1 -U "$1" -d "$@"; } # each database belongs to the role of its name

start_relay() {
    "$build/relay/outbox-relay" --config "$directory/relay.toml" 2>>"$directory/relay.log" &
    relay=$!
}

set_up() {
    start_server "$directory" <<<"listen_addresses = ''
unix_socket_directories = '$directory'"
    export PGHOST=$directory PGUSER=postgres PGOPTIONS='-c client_min_messages=warning'
    local of_relay of_writer
    of_relay=$(random_password) of_writer=$(random_password)
    sql postgres -c 'CREATE ROLE shop LOGIN' -c 'CREATE ROLE catalog LOGIN' \
        -c "CREATE ROLE relay LOGIN PASSWORD '$of_relay'" -c "CREATE ROLE writer LOGIN PASSWORD '$of_writer'" \
        -c 'CREATE DATABASE shop OWNER shop' -c 'CREATE DATABASE catalog OWNER catalog'
    printf '%s\n' 'local all relay,writer scram-sha-256' 'local all all trust' |
        as_server_user tee "$directory/data/pg_hba.conf" >/dev/null
    sql postgres -c 'SELECT pg_reload_conf()' >/dev/null

    sql shop -f "$build/sql/pg_outbox--sql.sql" -f "$repository/scripts/demo/shop.sql" \
        -c "SELECT outbox.grant_relay('relay')" \
        -c "INSERT INTO outbox.destination_config VALUES ('catalog', '{\"url\": \"postgresql:///catalog\"}')" >/dev/null
    "$build/tools/outboxctl/outboxctl" inbox install -d 'dbname=catalog user=catalog' >/dev/null
    sql catalog -f "$repository/scripts/demo/catalog.sql" -f "$repository/scripts/demo/catalog_sql.sql" \
        -c "SELECT inbox.grant_send('writer')" >/dev/null

    (umask 077 && cat >"$directory/relay.toml") <<EOF
[databases.shop]
url = "postgresql://relay@/shop?host=$directory"
password = "$of_relay"
trusted = true # the other database is behind a socket of this machine

[credentials.catalog]
user = "writer"
password = "$of_writer"
urls = ["postgresql://*"]
EOF
    start_relay
    psql -X -q -U catalog -d catalog -c 'CALL apply_for_ever()' >"$directory/applier.log" 2>&1 &
    applier=$!
}

random_password() { od -An -N 16 -t x1 /dev/urandom | tr -d ' \n'; }

kill_relay() {
    kill -KILL $relay
    wait $relay 2>/dev/null || true
    start_relay
}

show_latency() { :; }

stop_programs() {
    local program
    for program in $relay $applier; do
        kill "$program" 2>/dev/null && wait "$program" 2>/dev/null || true
    done
}
