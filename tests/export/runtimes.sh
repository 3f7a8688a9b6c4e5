#!/usr/bin/env bash
# Exports random programs, and runs the files in other programs: runtimes.sh PROGRAM PYTHON CHECK
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
BELLOWS_EXPORT_FOLDER=$folder "$1" --gtest_brief=1
"$2" "$3" "$folder"
