#!/usr/bin/env bash
# sharded.sh SHARDED_TEST PYTHON VERIFY: has the tests of sharded checkpoints write one, and Python's safetensors read it.
set -euo pipefail
[[ -x $2 ]] || { echo "no Python with the safetensors package at $2: run script/bench once, which installs it" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
BELLOWS_SHARDED_OUT=$folder "$1" --gtest_brief=1 --gtest_filter='Sharded.WritesForPython' >&2
"$2" "$3" "$folder"
