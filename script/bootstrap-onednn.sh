# Part of script/bootstrap: finds or fetches oneDNN and links it at .deps/onednn. Bellows builds without it, too.
# The wheels of 2023.2.0 (oneDNN 3.2) are the last ones for oneTBB alone. The newer wheels `onednn` run even CPU code through SYCL,
# and need Intel's SYCL and OpenCL runtimes. DNNL_DIR selects any other oneDNN from 3.2 on.
onednn_version=2023.2.0

# Why $1 cannot be used as oneDNN; nothing when it can.
onednn_problem() {
  local dir=$1 major
  if [[ ! -e $dir/include/oneapi/dnnl/dnnl.hpp || ! -e $dir/lib/libdnnl.so ]]; then
    echo "it has no include/oneapi/dnnl/dnnl.hpp or lib/libdnnl.so"
    return
  fi
  major=$(sed -n 's/.*define DNNL_VERSION_MAJOR *\([0-9]*\).*/\1/p' "$dir/include/oneapi/dnnl/dnnl_version.h")
  [[ $major == 3 ]] || { echo "it is version ${major:-unknown}; expected 3"; return; }
  [[ -n ${DNNL_DIR:-} ]] || grep -qs 'THREADING_RUNTIME DNNL_RUNTIME_TBB' "$dir/include/oneapi/dnnl/dnnl_config.h" ||
    echo "it does not run on oneTBB"
}

link_onednn() {
  rm -rf .deps/onednn.link
  ln -s "$1" .deps/onednn.link
  mv -fT .deps/onednn.link .deps/onednn
  say "oneDNN from $2: $1"
}

# The wheel is built with Intel's compiler. From its runtime libraries it needs two functions, which a small library of ours contains, and
# math functions, which the system's libm contains, too. Intel's math library must not be loaded, because it would replace libtorch's.
detach_from_intel() {
  local lib=$1
  printf '%s\n' '#include <string.h>' \
    'void* _intel_fast_memcpy(void* to, const void* from, size_t bytes) { return memcpy(to, from, bytes); }' \
    'void* _intel_fast_memset(void* to, int byte, size_t bytes) { return memset(to, byte, bytes); }' |
    "${CXX:-c++}" -O2 -fPIC -shared -Wl,-soname,libdnnl_memory.so -x c - -o "$lib/libdnnl_memory.so" &&
    patchelf --replace-needed libimf.so libm.so.6 "$lib/libdnnl.so.3" &&
    patchelf --replace-needed libintlc.so.5 libdnnl_memory.so "$lib/libdnnl.so.3" &&
    patchelf --set-rpath '$ORIGIN' "$lib/libdnnl.so.3"
}

# The wheels hold data/include and data/lib, and the library three times.
download_onednn() {
  local target=.deps/onednn-$onednn_version-tbb data
  rm -rf "$target" "$target.partial" .deps/wheels
  say "downloading onednn-cpu-tbb==$onednn_version from PyPI (convolutions of compiled functions, 41 MB)"
  download_wheel "onednn-cpu-tbb==$onednn_version" && download_wheel "onednn-devel-cpu-tbb==$onednn_version" || return 1
  unpack_into "$target.wheels" .deps/wheels/*.whl || return 1
  rm -rf .deps/wheels
  mkdir "$target.partial"
  for data in "$target.wheels"/*.data/data; do cp -r "$data"/. "$target.partial"; done
  rm -rf "$target.wheels"
  ln -sf libdnnl.so.3 "$target.partial/lib/libdnnl.so"
  rm -f "$target.partial"/lib/libdnnl.so.3.*
  detach_from_intel "$target.partial/lib" || { say "the downloaded oneDNN could not be changed with ${CXX:-c++} and patchelf"; return 1; }
  mv "$target.partial" "$target"
}

find_onednn() {
  local problem
  if [[ -n ${DNNL_DIR:-} ]]; then
    problem=$(onednn_problem "$DNNL_DIR")
    [[ -z $problem ]] || fail "DNNL_DIR ($DNNL_DIR) cannot be used: $problem. Unset it to let script/bootstrap choose."
    [[ .deps/onednn -ef $DNNL_DIR ]] || link_onednn "$(realpath "$DNNL_DIR")" DNNL_DIR
    return
  fi
  [[ -e .deps/onednn && -z $(onednn_problem .deps/onednn) ]] && return
  [[ $(uname -m) == x86_64 ]] || { say "no oneDNN for this machine on PyPI: compiled functions do without, or set DNNL_DIR"; return; }
  if download_onednn; then
    link_onednn "onednn-$onednn_version-tbb" PyPI
    rm -rf ".deps/onednn-$onednn_version"  # of earlier versions of this script
  elif [[ -e .deps/onednn ]]; then
    say "oneDNN could not be downloaded: keeping $(readlink .deps/onednn), although $(onednn_problem .deps/onednn). Run script/bootstrap again."
  else
    say "oneDNN could not be downloaded: compiled functions do without. Run script/bootstrap again, or set DNNL_DIR."
  fi
}
