#!/usr/bin/env bash
# What can be checked without a build, in half a minute: format, lint, and the rules of tests/layout.
#
#   scripts/check.sh          says what is wrong
#   scripts/check.sh --fix    formats first
#
# As a hook before each commit: git config core.hooksPath .githooks

source "$(dirname "$0")/common.sh"

need_packages "${check_packages[@]}"
cd "$repository"
tools=$build/check-tools
requirements=(ruff==0.17.6 mdformat==1.0.0 mdformat-gfm==1.0.0)
if [ "$(cat "$tools/requirements" 2>/dev/null)" != "${requirements[*]}" ]; then
    /usr/bin/python3 -m venv --clear "$tools"
    "$tools/bin/pip" install -q "${requirements[@]}"
    echo "${requirements[*]}" >"$tools/requirements"
fi

files() { git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do [ ! -e "$file" ] || echo "$file"; done; }
on_all_processors() { xargs -d '\n' -P "$(nproc)" -n 40 "$@"; }

status=0
must() { # must WHAT COMMAND...
    local output
    output=$("${@:2}" 2>&1) && return
    status=1
    printf '%s:\n%s\n' "$1" "$output" >&2
}

# docs/settings.md and docs/reference are made from the code.
format_pages() { files '*.md' ':!docs/settings.md' ':!docs/reference' | xargs -d '\n' "$tools/bin/mdformat" "$@"; }
format_cpp() { files '*.cpp' '*.hpp' | on_all_processors clang-format "$@"; }
check_shell() { files '*.sh' .ci/run .githooks/pre-commit | on_all_processors shellcheck --shell=bash --severity=warning --exclude=SC1090,SC1091,SC2034,SC2120,SC2154,SC2164; }

if [ "${1:-}" = --fix ]; then
    format_cpp -i
    "$tools/bin/ruff" check -q --fix . || true
    "$tools/bin/ruff" format -q .
    format_pages
fi
must "clang-format (repaired by scripts/check.sh --fix)" format_cpp --dry-run --Werror
must "ruff format (repaired by scripts/check.sh --fix)" "$tools/bin/ruff" format --check .
must "ruff" "$tools/bin/ruff" check --output-format concise .
must "mdformat (repaired by scripts/check.sh --fix)" format_pages --check
must "shellcheck" check_shell
for rule in tests/layout/*.py; do
    [[ $rule == *_test.py || $rule == */changed.py ]] || must "$rule" /usr/bin/python3 "$rule"
done
must "tests of the rules" /usr/bin/python3 -m unittest discover -q -s tests/layout -p '*_test.py'
[ $status -ne 0 ] || say "nothing to complain about"
exit $status
