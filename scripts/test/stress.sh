# One test, or those that have changed, again and again beside a load. To be sourced by test.sh.

one_by_one() { # one_by_one ARGUMENT...: pytest
    OUTBOX_BUILD=$build /usr/bin/python3 -m pytest -q -x -p no:cacheprovider -m "$marks" "$@"
}

# Beside a load a test gets at most half a processor, at unpredictable times.
begin_load() {
    local n
    for ((n = 0; n < $(nproc); n++)); do
        setpriv --pdeathsig KILL bash -c 'while :; do :; done' &
        beside+=($!)
    done
}

# Unit tests use the same several seeds in every run.
repeat() { # repeat WHAT TIMES COMMAND...
    local what=$1 times=$2 n seed=${OUTBOX_TEST_SEED:-}
    shift 2
    for ((n = 1; n <= times; n++)); do
        [ -n "$seed" ] || export OUTBOX_TEST_SEED=$((SRANDOM % 1000000))
        "$@" >"$results/stress.log" 2>&1 || break
    done
    if [ "$n" -le "$times" ]; then
        cat "$results/stress.log" >&2
        say "run $n of $what failed; OUTBOX_TEST_SEED=$OUTBOX_TEST_SEED"
    fi
    say "$((n - 1)) of $times passed"
    count $((n - 1)) $((n <= times)) "$what beside a load"
}

run_named_ctest() { (cd "$build" && ctest --output-on-failure -R "$1"); } # run_named_ctest EXPRESSION

# Repeats the tests that $name means, $times times.
run_stress() {
    local suite of=()
    export REQUIRE_ALL_TESTS=1
    build_tests
    servers_installed
    case $name in
        [A-Z]*)
            build_targets "$build" tests/unit/all
            (cd "$build" && ctest -N -R "$name") | grep -q '^Total Tests: [1-9]' || die "no test is named $name"
            begin_load
            repeat "$name" "$times" run_named_ctest "$name"
            ;;
        *.py | *.py::*)
            mapfile -t of < <(find "$repository"/tests/{system,security,drills,world,citus} -path "*/${name%%::*}")
            [ ${#of[@]} -gt 0 ] || die "no test is named $name"
            [ ${#of[@]} -eq 1 ] || die "\"$name\" is in several suites: ${of[*]}"
            begin_load
            repeat "$name" "$times" one_by_one "${of[0]}${name#"${name%%::*}"}"
            ;;
        *)
            for suite in system security drills world citus; do
                ! one_by_one "$repository/tests/$suite" -k "$name" --collect-only >/dev/null || of+=("$suite")
            done
            [ ${#of[@]} -gt 0 ] || die "no test is named $name"
            begin_load
            for suite in "${of[@]}"; do repeat "$name" "$times" one_by_one "$repository/tests/$suite" -k "$name"; done
            ;;
    esac
}

# Repeats tests whose own lines have changed since $changed_since ten times.
run_changed() {
    local suite tests=() names
    git -C "$repository" rev-parse -q --verify "$changed_since^{commit}" >/dev/null || die "there is no revision $changed_since"
    python3 "$repository/tests/layout/changed.py" "$changed_since" "$repository" >"$results/changed"
    if [ ! -s "$results/changed" ]; then
        say "no test has changed since $changed_since"
        exit 0
    fi
    export REQUIRE_ALL_TESTS=1
    build_tests
    servers_installed
    names=$(sed -n 's/^unit //p' "$results/changed" | paste -sd '|')
    [ -z "$names" ] || build_targets "$build" tests/unit/all
    begin_load
    [ -z "$names" ] || repeat "changed unit tests" 10 run_named_ctest "(^|/)($names)(/|$)"
    for suite in system security drills world citus; do
        mapfile -t tests < <(sed -n "s#^pytest \(tests/$suite/.*\)#$repository/\1#p" "$results/changed")
        [ ${#tests[@]} -eq 0 ] || repeat "changed tests of $suite" 10 one_by_one "${tests[@]}"
    done
}
