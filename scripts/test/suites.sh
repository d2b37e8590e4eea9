# One function for each suite. To be sourced by test.sh.
#
#   check         scripts/check.sh: format, links, paths, language
#   docs          the site builds, and all its links lead somewhere
#   tidy          clang-tidy
#   unit          C++ without a server
#   sanitized     the same under ASan and UBSan, with clang
#   regress       pg_regress and isolation tests, with both editions
#   system        a real server and real brokers; and tests/world, steps of operators
#   server        those system tests whose result can depend on the major of the server; they need no broker
#   published     the same with a publication of all tables in every database
#   outside       system tests of delivery once more, with outbox-relay in place of the workers of the server
#   edition       system tests that speak SQL once more, with the SQL edition in place of the extension
#   security      attacks and hostile peers
#   drills        processes are killed, and an independent ledger is compared with what arrived
#   timing        promises about time, which other suites do not check: alone, one test at a time
#   citus         nodes of a Citus cluster; not tested where the server does not have Citus
#   threads       the client under ThreadSanitizer
#   kafka-matrix  two versions of Kafka with two of librdkafka
#   valgrind      regress, with the server in valgrind
#   fuzzers       random calls, changes of the catalog and answers of peers
#   majors        regress and server with other majors of PostgreSQL, and pg_upgrade between them

# Builds once for all suites: everything but the unit tests, and what only tests with brokers run.
built=
build_tests() {
    local targets=({lib,sql,client,tools,relay,extension}/all install_scripts)
    [ -z "$with_brokers" ] || targets+=({examples,tests/programs}/all)
    [ -z "$built" ] || return 0
    configure $preset "$build"
    build_targets "$build" "${targets[@]}"
    built=1
}

run_ctest() { # run_ctest DIRECTORY SUITE
    local log=$results/$2.log
    (cd "$1" && ctest --output-on-failure -j6 --output-junit "$results/$2.xml" >"$log" 2>&1) ||
        grep -vE ' (Passed|Start) |: Start | Start +[0-9]+:' "$log" | tail -n 300 >&2
    count_junit "$results/$2.xml" "$2"
}

build_and_run_units() { # build_and_run_units PRESET DIRECTORY SUITE
    configure "$1" "$2"
    build_targets "$2" tests/unit/all
    run_ctest "$2" "$3"
}

run_check() {
    count_command check "$repository/scripts/check.sh"
}

run_docs() { count_command docs "$repository/scripts/docs.sh"; }

run_tidy() { count_command tidy "$repository/scripts/tidy.sh"; }

run_unit() { build_and_run_units $preset "$build" unit; }

# With clang, so that its warnings are seen; it takes a third less time than g++, too.
run_sanitized() { build_and_run_units sanitized "$build-sanitized" sanitized; }

# The client under ThreadSanitizer: its unit tests, and the system tests of the consumer and of its sources.
# A report ends the process, so its test fails. gRPC itself is not instrumented.
# Without Kafka: librdkafka begins its threads by thrd_create(), of which ThreadSanitizer hears nothing. Code of ours in
# such a thread crashes the program.
run_threads() {
    local threads=$build-threads tests=$repository/tests/system/client
    build_tests # the part for the server
    configure threads "$threads"
    build_targets "$threads"
    run_ctest "$threads" threads
    OUTBOX_CLIENT_BUILD=$threads TSAN_OPTIONS="halt_on_error=1 suppressions=$repository/tests/thread_suppressions" \
        run_pytest threads-system --dist loadfile "$tests"/test_{consumer,trouble,pull_source,sqs,pubsub_source}.py \
        "$tests/test_source_conformance.py" -k 'not kafka and (not conformance or pull or sqs)'
}

run_regress() { # run_regress [OPTION]: of run.sh
    build_tests
    local status=0 ok bad
    "$repository/regress/run.sh" "$@" >"$results/regress.log" 2>&1 || status=1
    [ $status -eq 0 ] || tail -n 100 "$results/regress.log" >&2
    ok=$(grep -Ec '^test .*\.\.\. ok|^ok +[0-9]' "$results/regress.log" || true)
    bad=$(grep -Ec '^test .*\.\.\. FAILED|^not ok' "$results/regress.log" || true)
    [ $status -eq 0 ] || [ "$bad" -gt 0 ] || bad=1 # it stopped before the tests
    say "-- regress: the ten slowest"
    grep -E '^(test|ok|not ok) .* ms$' "$results/regress.log" | sed -E 's/^(test|(not )?ok +[0-9]+ +[-+]) +//' |
        awk '{ printf "%8.2f s  %s\n", $(NF - 1) / 1000, $1 }' | sort -rn | sed -n 1,10p >&2
    count "$ok" "$bad" "regress${1:+ $1}"
}

# Needs a server with assertions: scripts/majors.sh 15-asserts -- valgrind.
run_valgrind() {
    need_packages valgrind
    run_regress --valgrind
}

# Tests mostly wait, so more of them run in parallel than there are processors. Those that share servers run in one
# process: see tests/system/shares.py.
run_pytest() { # run_pytest SUITE [ARGUMENT...]: of pytest; default: the folder of the suite
    local suite=$1
    shift
    [ -z "$with_brokers" ] || servers_installed
    [ $# -gt 0 ] || set -- "$repository/tests/$suite" --dist loadfile
    OUTBOX_BUILD=$build /usr/bin/python3 -m pytest -q -p no:cacheprovider -n 6 -m "$marks" \
        --junitxml="$results/$suite.xml" "$@" >&2 || true
    count_junit "$results/$suite.xml" "$suite"
}

run_system() {
    build_tests
    run_pytest system
    run_pytest world
}

# They test SQL, catalogs, transactions, WAL, locks, workers and dumps. Sinks, programs beside the server and the client
# are left out: to them a server is what libpq shows.
run_server() { # run_server [NAME [ARGUMENT...]]: of pytest
    build_tests
    local tests=$repository/tests/system
    run_pytest "${1:-server}" --dist loadfile "${@:2}" \
        "$tests"/test_{backfill,capture,capture_statement,delivery,edition,endpoint_tables,expressions,find_event,health,life,log,operators}.py \
        "$tests"/test_{copies,outbox_view,prepared,privileges,pull,relay_functions,segments,settings,unread,upgrade,windows,workers}.py \
        "$tests"/test_{inbox,inbox_install,inbox_projection,inbox_trouble,ledger,pg_upgrade}.py \
        "$tests"/test_migrate_edition.py::test_{there_and_back_everything_is_the_same,everything_works_as_before}
}

# A dump has the publication, and so has the database it is restored in: tests that do that are left out, and those with
# tables of their own whose rows have no identity.
run_published() {
    local marks="${marks:+$marks and }not long"
    OUTBOX_TEST_PUBLICATION=1 run_server published \
        -k 'not (dump or restore or upgraded or rights_survive or compares_otherwise)'
}

run_outside() {
    build_tests
    local tests=$repository/tests/system
    OUTBOX_TEST_RELAY=outside run_pytest outside "$tests"/test_{delivery,endpoints,operators}.py "$tests/sinks/test_conformance.py" \
        -k 'not (conformance and (sns or sqs or kinesis or eventbridge or pubsub or kafka or rabbitmq or nats or redis or mqtt))'
}

run_edition() {
    build_tests
    OUTBOX_TEST_EDITION=sql run_pytest edition-world "$repository/tests/world" --dist loadfile
    local tests=$repository/tests/system marks="${marks:+$marks and }not slow"
    # The drills have crashes under load.
    # Tests of backfills: those of walking a table and locking its rows, which SQL does there.
    OUTBOX_TEST_EDITION=sql run_pytest edition --dist loadfile -k 'not a_crash_repeats' \
        "$tests"/test_{capture,capture_statement,delivery,endpoint_tables,endpoints,health,log,operators,outbox_view,pull,segments,windows}.py \
        "$tests"/test_backfill.py::test_{rows_that_are_locked_for_long_come_last,a_bad_row_stops_it_and_is_named} \
        "$tests"/test_backfill.py::test_{a_backfill_fails_when_what_it_needs_is_gone,partitions_and_children_are_walked_one_after_the_other} \
        "$tests"/test_backfill.py::test_{keys_of_several_columns_and_any_type\[7\],copies_end_equal\[calm-unversioned\]}
    # Its conditions are triggers, and it walks tables as its owner.
    OUTBOX_TEST_EDITION=sql run_pytest edition-security "$repository/tests/security/test_paths_of_code.py"
}

run_security() {
    build_tests
    run_pytest security
}

run_drills() {
    build_tests
    run_pytest drills
}

# Each folder has fixtures of its own, so it is a run of its own.
run_timing() {
    build_tests
    servers_installed
    local suite marks=timing
    for suite in system security drills $(! has_citus || echo citus); do
        OUTBOX_TEST_TIMING=1 run_pytest "timing-$suite" "$repository/tests/$suite" -n 0
    done
}

has_citus() { [ -e "$("$pg_config" --sharedir)/extension/citus.control" ]; }

run_citus() {
    if ! has_citus; then
        say "NOT TESTED: Citus, because the server does not have it"
        return
    fi
    build_tests
    run_pytest citus
}

# The kafka sink with the Kafka of the system suite and the last of 3.x, each with the librdkafka of the distribution and
# the one that Confluent's client brings.
run_kafka-matrix() {
    local sinks=$repository/tests/system/sinks current server library
    build_tests
    servers_installed
    cmp -s "$repository/tests/kafka/pom.xml" "$build/servers/kafka-3.9/pom.xml" || install_kafka kafka-3.9 -Dkafka=3.9.1 ||
        die "could not install Kafka 3.9"
    current=$(mktemp -d)
    chmod 755 "$current"
    install -m 755 "$build"/servers/python/lib/python3*/site-packages/confluent_kafka.libs/librdkafka-*.so.1 \
        "$current/librdkafka.so.1"
    for server in kafka kafka-3.9; do
        for library in distribution current; do
            OUTBOX_TEST_KAFKA=$server LD_LIBRARY_PATH=$([ $library = distribution ] || echo "$current") \
                run_pytest "$server-$library" --dist loadfile "$sinks"/test_conformance.py "$sinks"/test_kafka*.py -k kafka
        done
    done
    rm -rf "$current"
}

run_fuzzers() {
    build_tests
    run_pytest fuzzers "$repository"/tests/security/fuzz -n 2 --dist loadfile -o faulthandler_timeout=0
}

run_random_kills() { # shows its output
    build_tests
    run_pytest random_kills -s -n 0 "$repository/tests/drills/test_random_kills.py"
}

run_majors() {
    if [ "$(id -u)" -ne 0 ] || ! unshare --mount true; then
        say "NOT TESTED: other majors, because a chroot needs root and the right to mount"
        return
    fi
    # Packages that other releases lack are skipped there.
    REQUIRE_ALL_TESTS=0 count_command majors "$repository/scripts/majors.sh" 17 18 -- regress server
    REQUIRE_ALL_TESTS=0 count_command pg_upgrade "$repository/scripts/majors.sh" --upgrade
}
