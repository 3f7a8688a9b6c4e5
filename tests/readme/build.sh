#!/usr/bin/env bash
# build.sh PREFIX WORK PAGE…: writes the blocks of each PAGE that are marked test=NAME to WORK/PAGE's name, and compiles the C++ blocks and
# the examples with the package installed in PREFIX. run.sh and ../examples/run.sh run the programs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
prefix=$1 work=$2
shift 2

rm -rf "$work"
for page in "$@"; do
  [[ -r $page ]] || { echo "there is no readable page at $page" >&2; exit 1; }
  folder=$work/$(basename "$page" .md)
  mkdir -p "$folder/run"
  awk -v out="$folder" -f "$here/extract.awk" "$page"
done

# needs BLOCK TEXT HEADER: a block that contains TEXT must include HEADER itself, because its reader compiles it alone.
needs() {
  if grep -q "$2" "$1" && ! grep -qE "^#include [<\"]($3)" "$1"; then
    echo "the block $1 uses $2, expected #include <$3>" >&2
    exit 1
  fi
}
for block in "$work"/*/*.cpp; do
  needs "$block" 'std::cout' iostream
  needs "$block" 'std::filesystem' filesystem
  needs "$block" 'torch::' torch/torch.h
  needs "$block" 'bw::' bellows/
done

# One program contains all blocks, each in a namespace of its own, because libtorch's headers take most of the time to compile. Block NAME of PAGE
# runs with the arguments PAGE NAME.
program=$work/blocks.cc
{
  cat "$work"/*/*.cpp | grep '^#include' | sort -u
  for block in "$work"/*/*.cpp; do
    page=$(basename "$(dirname "$block")")
    printf 'namespace %s_%s {\n' "${page//-/_}" "$(basename "$block" .cpp)"
    # Unlike main(), other functions need a return statement.
    grep -v '^#include' "$block" | sed 's/^int main(/int run(/' | tac | sed '0,/^}$/s//}\nreturn 0;/' | tac
    echo '}'
  done
  echo 'int main(int, char** arguments) {'
  echo '  const std::string block = std::string(arguments[1]) + " " + arguments[2];'
  for block in "$work"/*/*.cpp; do
    page=$(basename "$(dirname "$block")") name=$(basename "$block" .cpp)
    printf '  if (block == "%s %s") return %s_%s::run();\n' "$page" "$name" "${page//-/_}" "$name"
  done
  printf '  return 2;\n}\n'
} >"$program"
cmake -S "$here" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O0 -DNDEBUG" \
  -DWORK="$work"
cmake --build "$work/build" --parallel 2
