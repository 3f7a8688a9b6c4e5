#!/usr/bin/env bash
# torchrun.sh TORCHRUN PROGRAM: the ranks of the tests as torchrun starts them.
set -euo pipefail
[[ -x $1 ]] || { echo "no $1: script/bench makes that environment" >&2; exit 1; }
output=$(OMP_NUM_THREADS=1 timeout 120 "$1" --standalone --nproc-per-node 2 --no-python "$2" collectives 2>&1) || { echo "$output"; exit 1; }
echo "$output"
[[ $(grep -c "^collectives done" <<<"$output") == 2 ]]
[[ $output == *"world of 2 ranks (torchrun): gloo"* ]]
