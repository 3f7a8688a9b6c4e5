#!/usr/bin/env bash
# mds.sh INTEROP_MDS_TEST PYTHON VERIFY: has the tests of MDS write theirs, and mosaicml-streaming read them.
set -euo pipefail
[[ -x $2 ]] || { echo "no Python with the streaming package at $2: run script/bench loader once, which installs it" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
BELLOWS_IO_OUT=$folder "$1" --gtest_brief=1 \
  --gtest_filter='MdsTest.WritesTheBytes*:MdsTest.ReadsAndWrites*:MdsTest.LearnsColumns*' >&2
"$2" "$3" --verify "$folder"
