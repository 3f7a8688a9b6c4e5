#!/usr/bin/env bash
# run.sh PAGE WORK BIN: runs the blocks of the page that are marked test=NAME. build.sh wrote and compiled them in WORK.
#
# ```cpp test=NAME      a program, or statements that are wrapped in main; it must exit with 0
# ```console test=NAME  lines after `$ ` are run by bash, which must succeed; the other lines are for the reader
# ```sh test=NAME       is run by bash
# With exit=N after the name, the last command of a console or sh block must fail with status N. Blocks of commands run first, in
# the order of their names, so C++ programs can read their files.
# All run in a folder where data/ and examples/ are the project's, with BIN in front of the PATH.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
page=$(basename "$1" .md) bin=$3
work=$2/$page

rm -rf "$work/run"
mkdir -p "$work/run"
ln -s "$root/data" "$root/examples" "$work/run/"
cd "$work/run"
export PATH=$bin:$PATH
count=0
for block in "$work"/*.sh "$work"/*.cpp; do
  [[ -e $block ]] || continue
  name=$(basename "$block")
  echo "--- $name"
  case $name in
    *.cpp) "$2/blocks" "$page" "${name%.cpp}" </dev/null ;;
    *.sh) bash -euo pipefail "$block" </dev/null ;;
  esac || { echo "$1: the block test=${name%.*} failed with status $?" >&2; exit 1; }
  count=$((count + 1))
done
echo "$count blocks of the page work"
((count > 0)) || { echo "$1 has no block marked test=NAME" >&2; exit 1; }
