#!/usr/bin/env bash
# clang-tidy with the checks of .clang-tidy, on the product: each file by itself, as the preset `dev` compiles it.
#
#   scripts/tidy.sh [FILE...]     default: all; takes about half an hour on two processors

source "$(dirname "$0")/common.sh"

need_packages "${build_packages[@]}" "${library_packages[@]}" "${unit_packages[@]}" clang-tidy-16 clang-16
directory=$build-tidy
mkdir -p "$directory"
configure dev "$directory"
build_targets "$directory" client/sources/pubsub.pb.h # the one header that the build makes
cd "$repository"
[ $# -gt 0 ] || mapfile -t files < <(git ls-files {bgworker,client,extension,lib,relay,tools}/'*.cpp')
[ $# -eq 0 ] || files=("$@")
printf '%s\n' "${files[@]}" | xargs -d '\n' -P "$(nproc)" -n 4 clang-tidy-16 -p "$directory" --quiet
