#!/usr/bin/env bash
# Installs what the tests need, builds, and runs them; ends in "N passed, N failed".
#
#   scripts/test.sh                        the short run: a verdict before each merge
#   scripts/test.sh --all                  the long run: everything, before an issue is called resolved and before a release
#   scripts/test.sh SUITE...               these suites, whole
#   scripts/test.sh --changed [REVISION]   tests that are new or changed since then, ten times beside a load; default: origin/main
#   scripts/test.sh --stress NAME [TIMES]  one test again and again beside a load on all processors; default: 50 times
#   scripts/test.sh --long [MINUTES]       the drill of random kills for this time; default: 60
#   scripts/test.sh --fuzz [MINUTES]       each of the fuzzers for this time, two at a time; default: 60
#   scripts/test.sh --majors [...]         with other majors, and servers with assertions: see majors.sh
#
# Suites: check sanitized regress system edition security drills, which the short run takes without the tests marked `long`;
# and only in the long run: docs tidy unit published outside timing citus threads kafka-matrix fuzzers majors. By name only: server valgrind.
# scripts/test/suites.sh says what each is.
#
# NAME is a file of pytest (test_log.py, security/test_workers.py), a test of it (test_log.py::test_x), what -k of pytest
# selects, or, if it begins with a capital letter, a regular expression for names of CTest. The first failure ends the
# runs and is shown.
#
# After every suite its ten slowest tests are printed. A drill or fuzzer prints its seed; with OUTBOX_TEST_SEED=<seed> it is
# repeated. With REQUIRE_ALL_TESTS=1 a test that cannot run here is a failure, not a skip.

source "$(dirname "$0")/common.sh"
source "$repository/scripts/test/results.sh"
source "$repository/scripts/test/servers.sh"
source "$repository/scripts/test/suites.sh"
source "$repository/scripts/test/stress.sh"

short_run=(check sanitized regress system edition security drills)
long_run=(check docs tidy unit sanitized regress system published outside edition security drills timing citus threads kafka-matrix
    fuzzers majors)

preset=short             # of CMakePresets.json, for the build that is tested
marks=''                 # tests that are selected: an expression for -m of pytest
whole=1                  # with the tests marked `long`
minutes_for() { # minutes_for OPTION [MINUTES]
    [[ ${2:-60} =~ ^[0-9]+$ ]] || die "minutes are a number, not \"$2\""
    export OUTBOX_DRILL_MINUTES=${2:-60} OUTBOX_FUZZ_MINUTES=${2:-60}
}
case ${1:-} in
    '')
        suites=("${short_run[@]}")
        marks='not long'
        export OUTBOX_TEST_SHORT=1
        whole=
        ;;
    --all)
        suites=("${long_run[@]}")
        preset=long
        export OUTBOX_FUZZ_MINUTES=${OUTBOX_FUZZ_MINUTES:-1}
        ;;
    --changed) suites=(changed) && changed_since=${2:-origin/main} ;;
    --stress)
        suites=(stress)
        name=${2:-} times=${3:-50}
        [ -n "$name" ] || die "usage: scripts/test.sh --stress NAME [TIMES]"
        [[ $times =~ ^[1-9][0-9]*$ ]] || die "TIMES is a number above 0, not \"$times\""
        ;;
    --long) suites=(random_kills) && minutes_for "$@" ;;
    --fuzz) suites=(fuzzers) && minutes_for "$@" ;;
    --majors) exec "$repository/scripts/majors.sh" "${@:2}" ;;
    *) suites=("$@") ;;
esac
for suite in "${suites[@]}"; do
    declare -F "run_$suite" >/dev/null || die "suite \"$suite\" does not exist"
done

wanted() { [[ " ${suites[*]} " =~ \ ($1)\  ]]; } # wanted SUITE|...: one of them is to run
with_brokers=
! wanted 'system|outside|edition|security|drills|timing|threads|kafka-matrix|fuzzers|random_kills|stress|changed' || with_brokers=1

packages=("${build_packages[@]}" "${library_packages[@]}" "${unit_packages[@]}" "${system_packages[@]}")
! wanted sanitized || packages+=("${sanitizer_packages[@]}")
! wanted check || packages+=("${check_packages[@]}")
need_packages "${packages[@]}"
[ -z "$with_brokers" ] || begin_to_install
for suite in "${suites[@]}"; do "run_$suite"; done
conclude
