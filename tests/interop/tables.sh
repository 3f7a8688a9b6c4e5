#!/usr/bin/env bash
# tables.sh INTEROP_TABLES_TEST PYTHON VERIFY: has the tests of arrays, tables and folders write theirs, and NumPy, Python's csv and
# json modules and torchvision read them.
set -euo pipefail
[[ -x $2 ]] || { echo "no Python with torchvision at $2: run script/bench once, which installs it" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
BELLOWS_IO_OUT=$folder "$1" --gtest_brief=1 \
  --gtest_filter='ArraysTest.WritesWhat*:TablesTest.WritesTheBytes*:ImageFolderTest.WritesClass*' >&2
"$2" "$3" --verify "$folder"
