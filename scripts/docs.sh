#!/usr/bin/env bash
# Builds the docs as a site, in build/site, and fails if a link or an anchor leads nowhere, or a page is not in mkdocs.yml.
#
#   scripts/docs.sh

source "$(dirname "$0")/common.sh"

need_packages python3-venv
tools=$build/site-tools
requirements=(mkdocs==1.6.1 mdx_truly_sane_lists==1.3 pymdown-extensions==13.1)
if [ "$(cat "$tools/requirements" 2>/dev/null)" != "${requirements[*]}" ]; then
    python3 -m venv --clear "$tools"
    "$tools/bin/pip" install -q "${requirements[@]}"
    echo "${requirements[*]}" >"$tools/requirements"
fi

# Pages link to files anywhere in the repository, and MkDocs follows links in one folder only.
source=$build/site-source
rm -rf "$source"
mkdir -p "$source"
(cd "$repository" && cp -a --parents -t "$source" \
    *.md LICENSE mkdocs.yml docs examples bench monitoring scripts)
cd "$repository"
"$tools/bin/mkdocs" build --strict --clean --site-dir "$build/site" 2>&1 | sed '/^INFO/d' >&2
say "the site is in $build/site; begin with index.html"
