#!/usr/bin/env bash
# run.sh EXPORTED_TEST PYTHON SCRIPT: trains programs of torch.export in C++, and opens the written files in Python.
set -euo pipefail
[[ -x $2 ]] || { echo "no Python with PyTorch at $2: run script/bench peers once, which installs it" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
BELLOWS_EXPORTED_OUT=$folder "$1" --gtest_brief=1 --gtest_filter='*IsWrittenWithTrainedWeights*' >&2
"$2" "$3" --verify "$folder"
