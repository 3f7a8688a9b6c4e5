#!/usr/bin/env bash
# run.sh README PREFIX WORK BIN: compiles and runs what the README shows, with the package installed in PREFIX.
#
# ```cpp test=NAME      a program, or statements that are wrapped in main; it must exit with 0
# ```console test=NAME  lines after `$ ` are run by bash, which must succeed; the other lines are for the reader
# ```sh test=NAME       is run by bash
# With exit=N after the name, the last command of a console or sh block must fail with status N. Blocks of commands run first, in
# the order of their names, so C++ programs can read their files.
# All run in a folder where data/ and examples/ are the project's, with BIN in front of the PATH.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
readme=$1 prefix=$2 work=$3 bin=$4
[[ -r $readme ]] || { echo "no readable README at $readme" >&2; exit 1; }

rm -rf "$work"
mkdir -p "$work/run"
awk -v out="$work" -f "$here/extract.awk" "$readme"
ln -s "$here/../../data" "$here/../../examples" "$work/run/"

if compgen -G "$work/*.cpp" >/dev/null; then
  cmake -S "$here" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release -DSNIPPETS="$work"
  cmake --build "$work/build"
fi

cd "$work/run"
export PATH=$bin:$PATH
count=0
for snippet in "$work"/*.sh "$work"/*.cpp; do
  [[ -e $snippet ]] || continue
  name=$(basename "$snippet")
  echo "--- $name"
  case $name in
    *.cpp) "$work/build/${name%.cpp}" </dev/null ;;
    *.sh) bash -euo pipefail "$snippet" </dev/null ;;
  esac || { echo "README: the block test=${name%.*} failed with status $?" >&2; exit 1; }
  count=$((count + 1))
done
echo "$count blocks of the README work"
((count > 0)) || { echo "README has no block marked test=NAME" >&2; exit 1; }
