#!/usr/bin/env bash
# webdataset.sh TEST PYTHON VERIFY: has the test write shards, and the webdataset package read them.
set -euo pipefail
[[ -x $2 ]] || { echo "no Python with the webdataset package at $2: it is one of the peers of script/bench loader" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
BELLOWS_INTEROP_OUT=$folder "$1" --gtest_brief=1 --gtest_filter='WebDatasetWriter.WritesTheBytesOfShardWriter' >&2
"$2" "$3" --verify "$folder"
