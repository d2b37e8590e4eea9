#!/usr/bin/env bash
# Installs what the tests need, builds, and runs all of them; ends in "N passed, N failed".
#
#   scripts/test.sh [unit] [sanitized] [threads] [regress] [system] [security] [drills]     default: all but threads
#   scripts/test.sh --long [minutes]       the drill of random kills for so long; default: 60
#   scripts/test.sh --fuzz [minutes]       each of the fuzzers for so long, two at a time; default: 60
#
# A drill or fuzzer prints its seed; with OUTBOX_TEST_SEED=<seed> it is repeated.
# With REQUIRE_ALL_TESTS=1 a test that cannot run here is a failure, not a skip.

source "$(dirname "$0")/common.sh"

suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(unit sanitized regress system security drills)
if [ "${suites[0]}" = --long ] || [ "${suites[0]}" = --fuzz ]; then
    minutes=${2:-60}
    [[ $minutes =~ ^[0-9]+$ ]] || die "minutes are a number, not \"$minutes\""
    case ${suites[0]} in
        --long) suites=(random_kills) ;;
        --fuzz) suites=(fuzzers) ;;
    esac
    export OUTBOX_DRILL_MINUTES=$minutes OUTBOX_FUZZ_MINUTES=$minutes
fi

need_packages "${build_packages[@]}" libgtest-dev libgmock-dev postgresql-client-15 \
    python3-pytest python3-pytest-xdist python3-psycopg procps nginx-light openssl curl libgrpc++-dev libprotobuf-dev protobuf-compiler

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
passed=0
failed=0
count() { # count PASSED FAILED SUITE
    passed=$((passed + $1))
    failed=$((failed + $2))
    say "== $3: $1 passed, $2 failed"
}

# The numbers of a junit file; none: the suite did not get that far, which is a failure.
count_junit() { # count_junit FILE SUITE
    local numbers
    numbers=$(python3 - "$1" "$results/failures" <<'END'
import sys, xml.etree.ElementTree as tree
try:
    suites = [s for s in tree.parse(sys.argv[1]).iter("testsuite") if s.get("tests")]
    total = sum(int(s.get("tests")) for s in suites)
    bad = sum(int(s.get("failures", 0)) + int(s.get("errors", 0)) for s in suites)
    skipped = sum(int(s.get("skipped", 0)) + int(s.get("disabled", 0)) for s in suites)
    print(total - bad - skipped, bad)
    for case in tree.parse(sys.argv[1]).iter("testcase"):
        for problem in [*case.findall("failure"), *case.findall("error")]:
            name = f"{case.get('classname')}.{case.get('name')}"
            print(name, (problem.get("message") or "").split("\n")[0][:500], file=open(sys.argv[2], "a"))
except (OSError, tree.ParseError):
    print(0, 1)
END
    )
    # shellcheck disable=SC2086
    count $numbers "$2"
}

run_unit() {
    build_project -D OUTBOX_TESTS=ON
    (cd "$build" && ctest --output-on-failure -j2 --output-junit "$results/unit.xml" >"$results/unit.log" 2>&1) ||
        tail -n 60 "$results/unit.log" >&2
    count_junit "$results/unit.xml" unit
}

run_sanitized() {
    local sanitized=$build-sanitized
    cmake -S "$repository" -B "$sanitized" -G Ninja -D OUTBOX_SANITIZE=address,undefined \
        -D CMAKE_BUILD_TYPE=Debug -D CMAKE_CXX_FLAGS_DEBUG=-g1 >/dev/null
    cmake --build "$sanitized" --target tests/unit/all | tail -n 1 >&2
    (cd "$sanitized" && ctest --output-on-failure -j2 --output-junit "$results/sanitized.xml" >"$results/sanitized.log" 2>&1) ||
        tail -n 60 "$results/sanitized.log" >&2
    count_junit "$results/sanitized.xml" 'unit under ASan and UBSan'
}

# The client under ThreadSanitizer: its unit tests, and the system tests of the consumer and of its sources.
# A report ends the process, so its test fails. gRPC itself is not instrumented.
run_threads() {
    local threads=$build-threads tests=$repository/tests/system/client
    build_project -D OUTBOX_TESTS=ON # the server's part
    install_servers
    cmake -S "$repository" -B "$threads" -G Ninja -D OUTBOX_SANITIZE=thread -D CMAKE_BUILD_TYPE=Debug >/dev/null
    cmake --build "$threads" | tail -n 1 >&2
    (cd "$threads" && ctest --output-on-failure -j2 --output-junit "$results/threads.xml" >"$results/threads.log" 2>&1) ||
        tail -n 60 "$results/threads.log" >&2
    count_junit "$results/threads.xml" 'unit under TSan'
    OUTBOX_BUILD=$build OUTBOX_CLIENT_BUILD=$threads \
        TSAN_OPTIONS="halt_on_error=1 suppressions=$repository/tests/thread_suppressions" \
        /usr/bin/python3 -m pytest -q -p no:cacheprovider -n 2 --dist loadfile -k 'not takes_no_time' \
        "$tests"/test_{consumer,trouble,pull_source,sqs,pubsub_source}.py \
        --junitxml="$results/clients.xml" >&2 || true
    count_junit "$results/clients.xml" 'client under TSan'
}

run_regress() {
    build_project -D OUTBOX_TESTS=ON
    local status=0 ok bad
    "$repository/regress/run.sh" >"$results/regress.log" 2>&1 || status=1
    [ $status -eq 0 ] || tail -n 100 "$results/regress.log" >&2
    ok=$(grep -Ec '^test .*\.\.\. ok|^ok +[0-9]' "$results/regress.log" || true)
    bad=$(grep -Ec '^test .*\.\.\. FAILED|^not ok' "$results/regress.log" || true)
    [ $status -eq 0 ] || [ "$bad" -gt 0 ] || bad=1 # it did not get that far
    count "$ok" "$bad" regress
}

# What sinks and sources are tested against, below the build directory; tests/system/sinks/servers.py runs it.
# Google's emulator of Pub/Sub is no package of the distribution; it is used where it is installed.
# What cannot be installed the tests that need it will miss.
install_servers() {
    local servers packages=(python3-venv)
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
    installed requirements.txt || install_python || say "could not install moto and the clients"
    installed elasticmq/pom.xml || install_elasticmq || say "could not install ElasticMQ"
    { installed debezium/pom.xml && installed debezium/Reader.java; } || install_debezium ||
        say "could not install Debezium"
}
installed() { cmp -s "$repository/tests/$1" "$build/servers/$1"; }

install_python() {
    /usr/bin/python3 -m venv --clear "$build/servers/python" &&
        "$build/servers/python/bin/pip" install -q -r "$repository/tests/requirements.txt" &&
        cp "$repository/tests/requirements.txt" "$build/servers"
}

install_elasticmq() {
    mvn -q -B -f "$repository/tests/elasticmq/pom.xml" dependency:copy-dependencies \
        -DoutputDirectory="$build/servers/elasticmq" >&2 &&
        cp "$repository/tests/elasticmq/pom.xml" "$build/servers/elasticmq"
}

install_debezium() {
    local target=$build/servers/debezium
    rm -rf "$target"
    mvn -q -B -f "$repository/tests/debezium/pom.xml" dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$target" >&2 &&
        javac -cp "$target/*" -d "$target" "$repository/tests/debezium/Reader.java" &&
        cp "$repository/tests/debezium/pom.xml" "$repository/tests/debezium/Reader.java" "$target"
}

# Most of the time tests wait, so more of them run side by side than there are processors. The tests of a file share servers.
run_pytest() { # run_pytest SUITE
    install_servers
    OUTBOX_BUILD=$build /usr/bin/python3 -m pytest -q "$repository/tests/$1" -p no:cacheprovider \
        -n 3 --dist loadfile --junitxml="$results/$1.xml" >&2 || true
    count_junit "$results/$1.xml" "$1"
}

run_system() {
    build_project -D OUTBOX_TESTS=ON -D OUTBOX_EXAMPLES=ON
    run_pytest system
}

run_drills() {
    build_project -D OUTBOX_TESTS=ON
    run_pytest drills
}

run_security() {
    build_project -D OUTBOX_TESTS=ON
    run_pytest security
}

run_fuzzers() {
    build_project -D OUTBOX_TESTS=ON
    OUTBOX_BUILD=$build /usr/bin/python3 -m pytest -q "$repository"/tests/security/fuzz -p no:cacheprovider \
        -n 2 --dist loadfile -o faulthandler_timeout=0 --junitxml="$results/fuzzers.xml" >&2 || true
    count_junit "$results/fuzzers.xml" fuzzers
}

run_random_kills() { # shows what it does
    build_project -D OUTBOX_TESTS=ON
    OUTBOX_BUILD=$build /usr/bin/python3 -m pytest -q -s "$repository/tests/drills/test_random_kills.py" \
        -p no:cacheprovider --junitxml="$results/random_kills.xml" >&2 || true
    count_junit "$results/random_kills.xml" "random kills"
}

for suite in "${suites[@]}"; do
    declare -F "run_$suite" >/dev/null || die "no such suite: $suite"
    "run_$suite"
done
[ ! -s "$results/failures" ] || sed 's/^/failed: /' "$results/failures" >&2
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
