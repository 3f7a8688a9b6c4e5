#!/usr/bin/env bash
# beton.sh INTEROP_BETON_TEST PYTHON VERIFY: has the tests of .beton files write theirs, and FFCV read them.
set -euo pipefail
[[ -x $2 ]] || { echo "no Python with the ffcv package at $2: run script/bench loader once, which installs it" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
BELLOWS_IO_OUT=$folder "$1" --gtest_brief=1 --gtest_filter='BetonTest.WritesTheBytesOfFfcv:BetonTest.PagesMakeRoomForRows' >&2
"$2" "$3" --verify "$folder"
