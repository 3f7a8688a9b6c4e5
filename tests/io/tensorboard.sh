#!/usr/bin/env bash
# tensorboard.sh IO_TEST PYTHON VERIFY: has the tests of event files write theirs, and the tensorboard package read them.
set -euo pipefail
[[ -x $2 ]] || { echo "no Python with the tensorboard package at $2: run script/bench once, which installs it" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
BELLOWS_IO_OUT=$folder "$1" --gtest_brief=1 --gtest_filter='EventFileTest.EqualsWhat*:EventFileTest.AResumedRun*' >&2
"$2" "$3" --verify "$folder"
