#!/usr/bin/env bash
# Installs what the tests need, builds, and runs all of them; ends in "N passed, N failed".
#
#   scripts/test.sh [unit] [sanitized] [threads] [regress] [system] [server] [outside] [edition] [security] [drills] [citus]
#                   [kafka-matrix] [valgrind]
#                                          default: all from sanitized to citus, but threads and server
#   scripts/test.sh --majors [...]         with other majors, and servers with assertions: see majors.sh
#   scripts/test.sh --long [minutes]       the drill of random kills for this time; default: 60
#   scripts/test.sh --fuzz [minutes]       each of the fuzzers for this time, two at a time; default: 60
#   scripts/test.sh --stress NAME [times]  one test again and again beside a load on all processors; default: 50 times
#
# NAME is a file of pytest (test_log.py, security/test_workers.py), a test of it (test_log.py::test_x), what -k of pytest
# selects, or, if it begins with a capital letter, a regular expression for names of CTest. The first failure ends the
# runs and is shown.
#
# server: those system tests whose result can depend on the major of the server. They need no broker.
# outside: system tests of delivery once more, with outbox-relay in place of the workers of the server.
# edition: system tests that speak SQL once more, with the SQL edition in place of the extension.
# citus: nodes of a Citus cluster. Not tested where there is no source of Citus: see citus.sh.
# After every suite its ten slowest tests are printed.
# A drill or fuzzer prints its seed; with OUTBOX_TEST_SEED=<seed> it is repeated.
# With REQUIRE_ALL_TESTS=1 a test that cannot run here is a failure, not a skip.

source "$(dirname "$0")/common.sh"

suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(sanitized regress system outside edition security drills citus)
[ "${suites[0]}" != --majors ] || exec "$(dirname "$0")/majors.sh" "${suites[@]:1}"
if [ "${suites[0]}" = --long ] || [ "${suites[0]}" = --fuzz ]; then
    minutes=${2:-60}
    [[ $minutes =~ ^[0-9]+$ ]] || die "minutes are a number, not \"$minutes\""
    case ${suites[0]} in
        --long) suites=(random_kills) ;;
        --fuzz) suites=(fuzzers) ;;
    esac
    export OUTBOX_DRILL_MINUTES=$minutes OUTBOX_FUZZ_MINUTES=$minutes
elif [ "${suites[0]}" = --stress ]; then
    name=${suites[1]:-}
    times=${suites[2]:-50}
    [ -n "$name" ] || die "usage: scripts/test.sh --stress NAME [times]"
    [[ $times =~ ^[1-9][0-9]*$ ]] || die "times is a number above 0, not \"$times\""
    suites=(stress)
fi

# Whether a suite is wanted that talks to brokers.
with_brokers=
[[ ! " ${suites[*]} " =~ \ (threads|system|outside|edition|security|drills|kafka-matrix|fuzzers|random_kills|stress)\  ]] || with_brokers=1

packages=("${build_packages[@]}" libgtest-dev libgmock-dev libgrpc++-dev libprotobuf-dev protobuf-compiler librdkafka-dev librabbitmq-dev
    python3-pytest python3-pytest-xdist python3-psycopg python3-prometheus-client procps openssl curl patch)
if [ -n "$with_brokers" ]; then
    packages+=(prometheus nginx-light mosquitto rabbitmq-server python3-pika systemd pgbouncer python3-selenium)
    ! apt-cache show chromium-driver >/dev/null 2>&1 || packages+=(chromium chromium-driver) # Ubuntu has them outside of apt
fi
need_packages "${packages[@]}"

results=$(mktemp -d)
beside=() # background processes
trap '[ ${#beside[@]} -eq 0 ] || kill "${beside[@]}" 2>/dev/null || true; rm -rf "$results"' EXIT
passed=0
failed=0
count() { # count PASSED FAILED SUITE
    passed=$((passed + $1))
    failed=$((failed + $2))
    say "== $3: $1 passed, $2 failed; $SECONDS s since the start"
}

# Counts the results of a junit file, and prints its slowest tests, with setup and teardown, on standard error.
# A file without results means that the suite stopped early, which is a failure.
count_junit() { # count_junit FILE SUITE
    local numbers
    numbers=$(python3 - "$1" "$results/failures" "$2" <<'END'
import sys, xml.etree.ElementTree as tree
try:
    suites = [s for s in tree.parse(sys.argv[1]).iter("testsuite") if s.get("tests")]
    total = sum(int(s.get("tests")) for s in suites)
    bad = sum(int(s.get("failures", 0)) + int(s.get("errors", 0)) for s in suites)
    skipped = sum(int(s.get("skipped", 0)) + int(s.get("disabled", 0)) for s in suites)
    print(total - bad - skipped, bad)
    times = []
    for case in tree.parse(sys.argv[1]).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        times.append((float(case.get("time") or 0), name))
        for problem in [*case.findall("failure"), *case.findall("error")]:
            print(name, (problem.get("message") or "").split("\n")[0][:500], file=open(sys.argv[2], "a"))
    print(f"-- {sys.argv[3]}: the ten slowest of {sum(time for time, _ in times):.0f} s of tests", file=sys.stderr)
    for time, name in sorted(times, reverse=True)[:10]:
        print(f"{time:8.2f} s  {name}", file=sys.stderr)
except (OSError, tree.ParseError):
    print(0, 1)
END
    )
    # shellcheck disable=SC2086
    count $numbers "$2"
}

# As for users, but with the debug information that a stack needs and no more: the rest of it is a third of the time to compile.
build_for_tests() { # build_for_tests [-- TARGET...]
    local flags="${OUTBOX_TEST_OPTIMIZATION:--O2} -g1 -DNDEBUG"
    build_project -D OUTBOX_TESTS=ON -D OUTBOX_EXAMPLES=ON -D "CMAKE_CXX_FLAGS_RELWITHDEBINFO=$flags" "$@"
}

# Builds once for all suites: everything but the unit tests, and what only tests with brokers run.
built=
build_tests() {
    local targets=({lib,sql,client,tools,relay,extension}/all install_scripts)
    [ -z "$with_brokers" ] || targets+=({examples,tests/programs}/all)
    [ -n "$built" ] || build_for_tests -- "${targets[@]}"
    built=1
}

run_unit() {
    build_for_tests
    (cd "$build" && ctest --output-on-failure -j6 --output-junit "$results/unit.xml" >"$results/unit.log" 2>&1) ||
        tail -n 60 "$results/unit.log" >&2
    count_junit "$results/unit.xml" unit
}

# With clang, so that its warnings are seen; it takes a third less time than g++, too.
run_sanitized() {
    local sanitized=$build-sanitized
    need_packages clang-16 libclang-rt-16-dev
    # All of UBSan but null, alignment, object-size and vptr, which look at each access to memory: they double the time
    # to compile, and the processor and ASan see most of it. (Signed overflow is defined here: -fwrapv.)
    local undefined=bounds,shift,integer-divide-by-zero,unreachable,return,bool,enum,builtin,nonnull-attribute
    undefined+=,returns-nonnull-attribute,float-cast-overflow,pointer-overflow
    cmake -S "$repository" -B "$sanitized" -G Ninja -D CMAKE_CXX_COMPILER=clang++-16 -D OUTBOX_SANITIZE=address,$undefined \
        -D CMAKE_BUILD_TYPE=Debug -D CMAKE_CXX_FLAGS_DEBUG=-g1 >/dev/null
    build_targets "$sanitized" tests/unit/all
    (cd "$sanitized" && ctest --output-on-failure -j6 --output-junit "$results/sanitized.xml" >"$results/sanitized.log" 2>&1) ||
        tail -n 60 "$results/sanitized.log" >&2
    count_junit "$results/sanitized.xml" 'unit under ASan and UBSan'
}

# The client under ThreadSanitizer: its unit tests, and the system tests of the consumer and of its sources.
# A report ends the process, so its test fails. gRPC itself is not instrumented.
run_threads() {
    local threads=$build-threads tests=$repository/tests/system/client
    build_tests # the part for the server
    servers_installed
    cmake -S "$repository" -B "$threads" -G Ninja -D OUTBOX_SANITIZE=thread -D CMAKE_BUILD_TYPE=Debug >/dev/null
    build_targets "$threads"
    (cd "$threads" && ctest --output-on-failure -j6 --output-junit "$results/threads.xml" >"$results/threads.log" 2>&1) ||
        tail -n 60 "$results/threads.log" >&2
    count_junit "$results/threads.xml" 'unit under TSan'
    OUTBOX_BUILD=$build OUTBOX_CLIENT_BUILD=$threads \
        TSAN_OPTIONS="halt_on_error=1 suppressions=$repository/tests/thread_suppressions" \
        /usr/bin/python3 -m pytest -q -p no:cacheprovider -n 2 --dist loadfile -k 'not takes_no_time' \
        "$tests"/test_{consumer,trouble,pull_source,sqs,pubsub_source}.py \
        --junitxml="$results/clients.xml" >&2 || true
    count_junit "$results/clients.xml" 'client under TSan'
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

# Installs servers for tests of sinks and sources below the build directory; tests/system/sinks/servers.py runs them.
# Google's emulator of Pub/Sub is not a package of the distribution; it is used where it is installed.
# If a server cannot be installed, the tests that need it report that.
install_servers() {
    local servers packages=(nats-server python3-venv redis-server ruby ruby-activerecord ruby-pg)
    servers=$(realpath -m "$build")/servers
    PATH=$PATH:/usr/local/go/bin
    command -v java >/dev/null || packages+=(default-jre-headless)
    command -v javac >/dev/null || packages+=(default-jdk-headless)
    command -v mvn >/dev/null || packages+=(maven)
    command -v go >/dev/null || packages+=(golang)
    need_packages "${packages[@]}"
    mkdir -p "$servers"
    (cd "$repository/tests/system/sinks/pstest_front" && go build -o "$servers/pstest_front" .) ||
        say "could not build the front of pstest"
    (cd "$repository/tests/system/sinks/mochi_broker" && go build -o "$servers/mochi_broker" .) ||
        say "could not build mochi, a broker of MQTT: it needs Go 1.21"
    installed requirements.txt || install_python || say "could not install moto and the clients"
    { installed webhooks/package.json && installed webhooks/verify.js; } || install_webhooks ||
        say "could not install the library of webhooks for JavaScript"
    installed elasticmq/pom.xml || install_elasticmq || say "could not install ElasticMQ"
    installed kafka/pom.xml || install_kafka || say "could not install Kafka"
    { installed debezium/pom.xml && installed debezium/Reader.java; } || install_debezium ||
        say "could not install Debezium"
    (cd "$repository/examples/go" && go build -o "$servers/orders" .) || say "could not build the example in Go"
    { installed spring/pom.xml "$repository/examples" && installed spring/Shop.java "$repository/examples"; } ||
        install_spring || say "could not build the example with Spring"
}
installed() { cmp -s "${2:-$repository/tests}/$1" "$build/servers/$1"; } # installed FILE [DIRECTORY]

# This waits for the network, so it runs during the build.
installing=
begin_to_install() {
    install_servers &
    installing=$!
    beside+=("$installing")
}
servers_installed() {
    [ -z "$installing" ] || wait "$installing"
    installing=
}

install_python() {
    /usr/bin/python3 -m venv --clear "$build/servers/python" &&
        "$build/servers/python/bin/pip" install -q -r "$repository/tests/requirements.txt" &&
        cp "$repository/tests/requirements.txt" "$build/servers"
}

install_webhooks() {
    local target=$build/servers/webhooks
    rm -rf "$target"
    command -v npm >/dev/null && npm install --silent --no-audit --no-fund --prefix "$target" \
        "$(sed -n 's/.*"\(standardwebhooks\)": "\(.*\)"/\1@\2/p' "$repository/tests/webhooks/package.json")" >&2 &&
        cp "$repository"/tests/webhooks/{package.json,verify.js} "$target"
}

install_elasticmq() {
    mvn -q -B -f "$repository/tests/elasticmq/pom.xml" dependency:copy-dependencies \
        -DoutputDirectory="$build/servers/elasticmq" >&2 &&
        cp "$repository/tests/elasticmq/pom.xml" "$build/servers/elasticmq"
}

install_kafka() { # install_kafka [DIRECTORY [ARGUMENT...]]: of mvn
    local target=$build/servers/${1:-kafka}
    rm -rf "$target"
    mvn -q -B -f "$repository/tests/kafka/pom.xml" dependency:copy-dependencies "${@:2}" \
        -DincludeScope=runtime -DoutputDirectory="$target" >&2 &&
        cp "$repository/tests/kafka/pom.xml" "$target"
}

install_debezium() {
    local target=$build/servers/debezium
    rm -rf "$target"
    mvn -q -B -f "$repository/tests/debezium/pom.xml" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$target" >&2 &&
        javac -cp "$target/*" -d "$target" "$repository/tests/debezium/Reader.java" &&
        cp "$repository/tests/debezium/pom.xml" "$repository/tests/debezium/Reader.java" "$target"
}

install_spring() {
    local target=$build/servers/spring source=$repository/examples/spring
    rm -rf "$target"
    mvn -q -B -f "$source/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$target" >&2 &&
        javac -cp "$target/*" -d "$target" "$source/Shop.java" &&
        cp "$source/pom.xml" "$source/Shop.java" "$target"
}

# Tests mostly wait, so more of them run in parallel than there are processors. Those that share servers run in one
# process: see tests/system/shares.py.
run_pytest() { # run_pytest SUITE [ARGUMENT...]: of pytest; default: the folder of the suite
    local suite=$1
    shift
    servers_installed
    [ $# -gt 0 ] || set -- "$repository/tests/$suite" --dist loadfile
    OUTBOX_BUILD=$build /usr/bin/python3 -m pytest -q -p no:cacheprovider -n 6 \
        --junitxml="$results/$suite.xml" "$@" >&2 || true
    count_junit "$results/$suite.xml" "$suite"
}

run_system() {
    build_tests
    run_pytest system
}

# What they test is SQL, catalogs, transactions, WAL, locks, workers and dumps. Left out are sinks, programs beside the server,
# and the client: to them a server is what libpq shows.
run_server() {
    build_tests
    local tests=$repository/tests/system
    run_pytest server --dist loadfile \
        "$tests"/test_{backfill,capture,capture_statement,delivery,edition,endpoint_tables,expressions,find_event,health,life,log,operators}.py \
        "$tests"/test_{outbox_view,prepared,privileges,pull,relay_functions,segments,settings,unread,upgrade,windows,workers}.py \
        "$tests"/test_{inbox,inbox_install,inbox_projection,inbox_trouble,ledger,pg_upgrade}.py \
        "$tests"/test_migrate_edition.py::test_{there_and_back_everything_is_the_same,everything_works_as_before}
}

run_outside() {
    build_tests
    local tests=$repository/tests/system
    OUTBOX_TEST_RELAY=outside run_pytest outside "$tests"/test_{delivery,endpoints,operators}.py "$tests/sinks/test_conformance.py" \
        -k 'not (conformance and (sns or sqs or kinesis or eventbridge or pubsub or kafka or rabbitmq or nats or redis or mqtt))'
}

run_edition() {
    build_tests
    local tests=$repository/tests/system
    # The drills have crashes under load.
    # Of backfills, what SQL does there: walking a table and locking its rows.
    OUTBOX_TEST_EDITION=sql run_pytest edition --dist loadfile -m 'not slow' -k 'not a_crash_repeats' \
        "$tests"/test_{capture,capture_statement,delivery,endpoint_tables,endpoints,health,log,operators,outbox_view,pull,segments,windows}.py \
        "$tests"/test_backfill.py::test_{rows_that_are_locked_for_long_come_last,a_bad_row_stops_it_and_is_named} \
        "$tests"/test_backfill.py::test_{a_backfill_fails_when_what_it_needs_is_gone,partitions_and_children_are_walked_one_after_the_other} \
        "$tests"/test_backfill.py::test_{keys_of_several_columns_and_any_type\[7\],copies_end_equal\[calm-unversioned\]}
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
            OUTBOX_BUILD=$build OUTBOX_TEST_KAFKA=$server LD_LIBRARY_PATH=$([ $library = distribution ] || echo "$current") \
                /usr/bin/python3 -m pytest -q "$sinks"/test_conformance.py "$sinks"/test_kafka*.py -k kafka -p no:cacheprovider \
                -n 4 --dist loadfile --junitxml="$results/matrix.xml" >&2 || true
            count_junit "$results/matrix.xml" "$server, librdkafka: $library"
        done
    done
    rm -rf "$current"
}

run_drills() {
    build_tests
    run_pytest drills
}

run_citus() {
    local status=0
    build_tests
    "$repository/scripts/citus.sh" || status=$?
    case $status in
        0) run_pytest citus ;;
        3) ;; # it has said so
        *) count 0 1 citus ;;
    esac
}

run_security() {
    build_tests
    run_pytest security
}

run_fuzzers() {
    build_tests
    OUTBOX_BUILD=$build /usr/bin/python3 -m pytest -q "$repository"/tests/security/fuzz -p no:cacheprovider \
        -n 2 --dist loadfile -o faulthandler_timeout=0 --junitxml="$results/fuzzers.xml" >&2 || true
    count_junit "$results/fuzzers.xml" fuzzers
}

run_random_kills() { # shows its output
    build_tests
    OUTBOX_BUILD=$build /usr/bin/python3 -m pytest -q -s "$repository/tests/drills/test_random_kills.py" \
        -p no:cacheprovider --junitxml="$results/random_kills.xml" >&2 || true
    count_junit "$results/random_kills.xml" "random kills"
}

one_by_one() { # one_by_one ARGUMENT...: pytest
    OUTBOX_BUILD=$build /usr/bin/python3 -m pytest -q -x -p no:cacheprovider "$@"
}

# Finds the tests that $name means, or fails. `of` becomes the file, or the suites that have some.
find_tests() {
    local suite
    of=()
    case $name in
        [A-Z]*)
            kind=ctest
            (cd "$build" && ctest -N -R "$name") | grep -q '^Total Tests: [1-9]'
            ;;
        *.py | *.py::*)
            kind=file
            mapfile -t of < <(find "$repository"/tests/{system,security,drills,citus} -path "*/${name%%::*}")
            [ ${#of[@]} -le 1 ] || die "\"$name\" is in several suites: ${of[*]}"
            [ ${#of[@]} -eq 1 ] && of=("${of[0]}${name#"${name%%::*}"}")
            ;;
        *)
            kind=selection
            for suite in system security drills citus; do
                ! one_by_one "$repository/tests/$suite" -k "$name" --collect-only >/dev/null || of+=("$suite")
            done
            [ ${#of[@]} -gt 0 ]
            ;;
    esac
}

run_tests_found() {
    local suite
    case $kind in
        ctest) (cd "$build" && ctest --output-on-failure -R "$name") ;;
        file) one_by_one "${of[0]}" ;;
        selection) for suite in "${of[@]}"; do one_by_one "$repository/tests/$suite" -k "$name" || return; done ;;
    esac
}

# Beside a load a test gets at most half a processor, at unpredictable times.
run_stress() {
    local n kind of seed=${OUTBOX_TEST_SEED:-}
    export REQUIRE_ALL_TESTS=1 OUTBOX_TEST_SLOWNESS=${OUTBOX_TEST_SLOWNESS:-3}
    build_tests
    find_tests || die "no test is named $name"
    [ $kind = ctest ] || install_servers
    for ((n = 0; n < $(nproc); n++)); do
        setpriv --pdeathsig KILL bash -c 'while :; do :; done' &
        beside+=($!)
    done
    for ((n = 1; n <= times; n++)); do
        # Unit tests use the same several seeds in every run.
        [ -n "$seed" ] || [ $kind = ctest ] || export OUTBOX_TEST_SEED=$((SRANDOM % 1000000))
        run_tests_found >"$results/stress.log" 2>&1 || break
    done
    if [ "$n" -le "$times" ]; then
        cat "$results/stress.log" >&2
        say "run $n of $name failed${OUTBOX_TEST_SEED:+; OUTBOX_TEST_SEED=$OUTBOX_TEST_SEED}"
    fi
    say "$((n - 1)) of $times passed"
    count $((n - 1)) $((n <= times)) "$name beside a load"
}

for suite in "${suites[@]}"; do
    declare -F "run_$suite" >/dev/null || die "suite \"$suite\" does not exist"
done
[[ ! " ${suites[*]} " =~ \ (threads|system|outside|edition|security|drills|kafka-matrix)\  ]] || begin_to_install
for suite in "${suites[@]}"; do "run_$suite"; done
[ ! -s "$results/failures" ] || sed 's/^/failed: /' "$results/failures" >&2
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
