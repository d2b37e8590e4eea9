#!/usr/bin/env bash
# The main job on a fresh machine: a shop commits events with its data, a catalog in another database
# gets each of them once and in order. Installs what is missing, builds, starts a private server, runs
# the workload, kills the relay on the way, and counts in the end, from the tables.
#
#   scripts/demo.sh [--keep] [--sql-edition]
#
#   --keep          leave the server running and say how to connect
#   --sql-edition   on a server that loads no library: databases owned by plain roles, SQL only, and
#                   outbox-relay, a program beside the server

source "$(dirname "$0")/common.sh"

keep=false
edition=native
for argument; do
    case $argument in
        --keep) keep=true ;;
        --sql-edition) edition=sql ;;
        *) die "usage: $0 [--keep] [--sql-edition]" ;;
    esac
done

seconds=10
clients=8
rate=1500 # transactions per second, so that a small machine keeps up

need_packages "${build_packages[@]}" procps
configure product "$build"
build_targets "$build"

directory=$(server_directory pg_outbox-demo)
cleanup() {
    $keep && [ -e "$directory/summary" ] && return
    stop_programs
    stop_server "$directory"
    rm -rf "$directory"
}
trap cleanup EXIT

# Set up differs between the editions, and so does the end of a relay; the rest is the same.
source "$repository/scripts/demo/$edition.sh"

set_up
say "server is up in $directory"

# Overwrites one line on a terminal; elsewhere prints a new line each time.
show_progress() {
    local line
    line=$(printf '%4d s   committed %6d   received %6d   applied %6d   %s' "$SECONDS" \
        "$(sql shop -c 'SELECT count(*) FROM ledger')" \
        "$(sql catalog -c 'SELECT (SELECT count(*) FROM inbox.processed) + (SELECT count(*) FROM inbox.message)')" \
        "$(sql catalog -c 'SELECT count(*) FROM applied')" "$1")
    if [ -t 2 ]; then printf '\r\033[K%s' "$line" >&2; else say "$line"; fi
}

SECONDS=0
pgbench -n -M prepared -c $clients -j 2 -T $seconds -R $rate -f "$repository/scripts/demo/change.pgbench" \
    shop >"$directory/pgbench.log" 2>&1 &
workload=$!
killed=false
while kill -0 $workload 2>/dev/null; do
    note=''
    if ! $killed && [ $SECONDS -ge $((seconds / 2)) ]; then
        kill_relay
        killed=true
        note='relay killed'
    fi
    show_progress "$note"
    timeout 0.5 tail --pid=$workload -f /dev/null || true # until the next line is due, or it has ended
done
wait $workload || { cat "$directory/pgbench.log" >&2; die "the workload failed"; }

# Everything has arrived when the catalog holds as many events as were committed; a minute is ample.
enqueued=$(sql shop -c 'SELECT count(*) FROM ledger')
while [ "$(sql catalog -c 'SELECT count(DISTINCT event_id) FROM applied')" -lt "$enqueued" ]; do
    [ $SECONDS -lt $((seconds + 60)) ] || break
    show_progress 'waiting for the rest'
    timeout 0.5 tail -f /dev/null || true
done
show_progress 'done'
[ -t 2 ] && say ''

# Counted from the tables of both sides, not from the log or the inbox.
sql shop -c 'SELECT event_id FROM ledger ORDER BY event_id' >"$directory/committed"
sql catalog -c 'SELECT DISTINCT event_id FROM applied ORDER BY event_id' >"$directory/applied"
lost=$(LC_ALL=C comm -23 <(LC_ALL=C sort "$directory/committed") <(LC_ALL=C sort "$directory/applied") | wc -l)
invented=$(LC_ALL=C comm -13 <(LC_ALL=C sort "$directory/committed") <(LC_ALL=C sort "$directory/applied") | wc -l)
applied=$(wc -l <"$directory/applied")
twice=$(sql catalog -c 'SELECT count(*) - count(DISTINCT event_id) FROM applied')
disorder=$(sql catalog -c '
    SELECT count(*) FROM (SELECT version < lag(version) OVER (PARTITION BY video_id ORDER BY number) AS back
                            FROM applied) AS step WHERE back')
rows='SELECT * FROM video ORDER BY video_id COLLATE "C"'
if cmp -s <(sql shop -c "$rows") <(sql catalog -c "$rows"); then same='equal'; else same='DIFFERENT'; fi
rolled_back=$(sql shop -c "SELECT last_value - $enqueued FROM outbox.event_position")

say "events rolled back: $rolled_back; events invented: $invented"
say "read model of $(sql catalog -c 'SELECT count(*) FROM video') videos: $same to the shop's table"
show_latency
echo "demo: enqueued $enqueued, applied $applied, lost $lost, twice $twice, out of order $disorder" |
    tee "$directory/summary"
if $keep; then
    say "the server keeps running. Connect with"
    say "    psql -h $directory -U postgres shop        (and: catalog)"
    say "and stop it with"
    stop="$(pg_bin)/pg_ctl -D $directory/data stop"
    if [ "$(id -u)" -eq 0 ]; then say "    su postgres -c '$stop'"; else say "    $stop"; fi
    [ $edition = native ] || say "outbox-relay keeps running, too; stop it with kill $relay"
fi
[ "$lost $twice $disorder $invented $same" = '0 0 0 0 equal' ]
