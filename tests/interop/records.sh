#!/usr/bin/env bash
# records.sh TEST_PROGRAM PYTHON GOLDENS_SCRIPT tfrecord|recordio: has the tests of record formats write files, and the original
# package read them.
set -euo pipefail
[[ -x $2 ]] || { echo "no Python with the original package at $2: see docs/formats.md" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
BELLOWS_INTEROP_OUT=$folder "$1" --gtest_brief=1 --gtest_filter='*.Writes*:*.ArraysOfAllKinds*:*.Ours*' >&2
"$2" "$3" "$4" --verify "$folder"
