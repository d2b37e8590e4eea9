# Counts the results of suites. To be sourced by test.sh.

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

# Runs a command that is a test by itself.
count_command() { # count_command SUITE COMMAND...
    if "${@:2}" >&2; then
        count 1 0 "$1"
    else
        echo "$1: ${*:2}" >>"$results/failures"
        count 0 1 "$1"
    fi
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

conclude() {
    [ ! -s "$results/failures" ] || sed 's/^/failed: /' "$results/failures" >&2
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}
