#!/usr/bin/env bash
# run.sh BUILD PREFIX: installs the build folder BUILD into PREFIX, then builds and runs the project beside this file with it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$1
prefix=$2
work=$prefix.consumer

rm -rf "$prefix" "$work"
cmake --install "$build" --prefix "$prefix" >"$build/install.log"

# Nothing of the build folder or the sources may have leaked into the package.
if grep -rnE "$(cd "$here/../.." && pwd)/(bellows|build|cmake)|bellows_(flags|pch)" "$prefix" --include='*.cmake'; then
  echo "the installed package speaks of the folder it was built in (lines above)" >&2
  exit 1
fi

cmake -S "$here" -B "$work" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release
cmake --build "$work"
for program in consumer consumer_system; do
  output=$("$work/$program" "$work")
  echo "$output"
  [[ $output == "bellows works: "* ]] || { echo "$program: unexpected output" >&2; exit 1; }
done
if [[ -x $prefix/bin/bellows ]]; then "$prefix/bin/bellows" --help >/dev/null; fi
