#!/usr/bin/env bash
# run.sh PREFIX WORK: configures each project of examples/ with the package installed in PREFIX, runs the programs that ../readme/build.sh built
# in WORK, and looks at what they say.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
prefix=$1 work=$2
command=$prefix/bin/bellows

complain() { echo "examples: $*" >&2; exit 1; }
rm -rf "$work/run" "$work/alone"
mkdir -p "$work/run"

for file in "$root"/examples/*/*.cpp "$root"/examples/*/*.h "$root"/examples/*/CMakeLists.txt; do
  (($(wc -l <"$file") <= 120)) || complain "$file has more than 120 lines"
done

# A user builds each project alone. Here they are built together, by ../readme/build.sh: libtorch's header is compiled once.
for folder in "$root"/examples/*/; do
  [[ -f $folder/CMakeLists.txt ]] || continue
  project=$work/alone/$(basename "$folder")
  cmake -S "$folder" -B "$project" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" >"$work/cmake.log" 2>&1 || { cat "$work/cmake.log" >&2; complain "$folder is no project"; }
done

cd "$work/run"
ln -s "$root/data" data

# run NAME PATTERN COMMAND…: it must succeed and say what matches PATTERN.
run() {
  local name=$1 pattern=$2 status=0
  shift 2
  echo "--- $name"
  "$@" </dev/null >"$name.out" 2>"$name.err" || status=$?
  cat "$name.out"
  ((status == 0)) || { cat "$name.err" >&2; complain "$name ended with status $status"; }
  grep -qE "$pattern" "$name.out" || complain "$name: expected its output to match $pattern"
}

accurate='held-out accuracy (0\.9|1\.0)'
run plain_loop "$accurate" ../01_plain_loop/plain_loop
run trainer '97 % reached' ../02_trainer/trainer
run resume 'bit-identical' ../04_resume/resume
run data "1438 of 1438 samples, each exactly once" ../06_data/data_example
run tensorboard '[1-9] x eval_accuracy' ../05_tensorboard/tensorboard
grep -qE '1 x first digit, [0-9]+ x samples' tensorboard.out || complain "tensorboard: expected events of its own"
run darts 'node 0 to 2: (none|skip|convolution)' ../09_darts/darts
run stock "$accurate" ../stock_mnist/plain
run stock_bellows "$accurate" ../stock_mnist/bellows_mnist

# One model, three ways: inside a command, as a plugin, as a TorchScript file; each trains and climbs the ladder.
job=(--data data/digits --set epochs=2 --json)
plugin=../03_own_model/libmynet.so
net=$root/examples/03_own_model/net.pt
[[ -f $plugin ]] || plugin=../03_own_model/mynet.so
run own_command '"model": "mynet"' ../03_own_model/mybellows train --model mynet "${job[@]}"
run own_plugin '"model": "mynet"' "$command" train --plugin "$plugin" --model mynet "${job[@]}"
losses() { grep '"train_loss"' "$1"; }
[[ $(losses own_command.out) == "$(losses own_plugin.out)" ]] || complain "the plugin trains to other bits than the program"
run own_torchscript '"eval_accuracy": 0\.[6-9]' "$command" train --model "$net" "${job[@]}"
climb=(--data data/digits --target-accuracy 0.6 --quick --max-seconds 1 --json)
run ladder_command '"technique": "plain"' ../03_own_model/mybellows ladder --model mynet "${climb[@]}"
run ladder_plugin '"technique": "plain"' "$command" ladder --plugin "$plugin" --model mynet "${climb[@]}"
run ladder_torchscript '"technique": "plain"' "$command" ladder --model "$net" "${climb[@]}"
for out in ladder_command ladder_plugin ladder_torchscript; do
  grep -q '"target_accuracy": 0.6' "$out.out" || complain "$out: its report lacks the target"
done

# A run that was made with a plugin says what is missing when it is resumed without.
"$command" train --plugin "$plugin" --model mynet --data data/digits --set epochs=1 --out runs/plugin >/dev/null 2>&1
if "$command" train --out runs/plugin --resume >without.out 2>&1; then complain "a resume without its plugin continued"; fi
grep -q 'no model is called "mynet"' without.out || complain "a resume without its plugin says: $(cat without.out)"

# The document shows the stock program's change as it is.
changed=$(diff "$root/examples/stock_mnist/plain.cpp" "$root/examples/stock_mnist/bellows.cpp" | grep -c '^>') || true
removed=$(diff "$root/examples/stock_mnist/plain.cpp" "$root/examples/stock_mnist/bellows.cpp" | grep -c '^<') || true
((changed <= 5 && removed <= changed)) || complain "the stock program needs $changed changed lines, expected at most 5"
diff -U0 "$root/examples/stock_mnist/plain.cpp" "$root/examples/stock_mnist/bellows.cpp" | grep -E '^[-+]' | tail -n +3 >change.diff || true
awk '/^```diff/ {inside = 1; next} /^```/ {inside = 0} inside' "$root/docs/tour.md" | grep -E '^[-+]' >shown.diff || true
diff change.diff shown.diff >&2 || complain "docs/tour.md shows another change of the stock program than there is (above)"
echo "the examples work; the stock program changes in $changed lines"
