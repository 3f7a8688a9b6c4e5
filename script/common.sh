# Sourced by the scripts of this folder. Sets `root` (the project's folder) and goes there.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
fail() { say "$*"; exit 1; }

# Prints the comment at the top of the calling script.
usage() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; }

# How many compilers to run at once: one a core, and 1.5 GB of memory for each.
build_jobs() {
  local cores memory_mb
  cores=$(nproc)
  memory_mb=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
  local fit=$((memory_mb / 1500))
  ((fit < 1)) && fit=1
  echo $((cores < fit ? cores : fit))
}

# configure PRESET [CMAKE OPTION…]; prints CMake's output only when it fails.
configure() {
  local preset=$1 log
  shift
  mkdir -p "build/$preset"
  log=build/$preset/configure.log
  if ! cmake --preset "$preset" "$@" >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    fail "cmake --preset $preset failed; its output stands above and in $log"
  fi
}

# build PRESET TARGET…
build() {
  local preset=$1
  shift
  cmake --build "build/$preset" --parallel "$(build_jobs)" --target "$@" </dev/null
}

# The pinned version of a clang tool where it is installed, else the plain one.
tool() {
  command -v "$1-14" || command -v "$1" || fail "$1 is not installed; script/bootstrap --lint installs it"
}

# The project's C++ files, one a line: what git tracks or would track, or all of them outside a repository.
sources() {
  local folders=(bellows cli tests bench examples)
  {
    git ls-files --cached --others --exclude-standard -- "${folders[@]}" 2>/dev/null ||
      find "${folders[@]}" -type f 2>/dev/null
  } | grep -E '\.(h|cpp)$' | sort -u | while read -r file; do [[ -f $file ]] && echo "$file"; done
}
