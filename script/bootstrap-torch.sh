# Part of script/bootstrap: finds or fetches libtorch and links it at .deps/torch.
torch_version=2.11.0
# The CPU library of the wheel needs these two to load; they are pinned to what the wheel was built with.
torch_companions=("nvidia-cuda-runtime==13.0.*" "nvidia-cuda-cupti==13.0.*")

version_of_torch() {
  sed -n 's/.*define TORCH_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\).*/\2/p' \
    "$1"/include/torch/headeronly/version.h "$1"/include/torch/csrc/api/include/torch/version.h 2>/dev/null | head -3 | paste -sd.
}

# Why $1 cannot be used as libtorch; nothing when it can.
torch_problem() {
  local dir=$1 version libraries
  if [[ ! -e $dir/include/ATen/core/Tensor.h || ! -e $dir/lib/libtorch_cpu.so ]]; then
    echo "it has no include/ATen/core/Tensor.h or lib/libtorch_cpu.so"
    return
  fi
  version=$(version_of_torch "$dir")
  if [[ ! $version =~ ^2\.11\. ]]; then
    echo "it is version ${version:-unknown}; expected 2.11"
    return
  fi
  libraries=$(printf '%s:' "$(realpath "$dir")"/../nvidia/*/lib)
  libraries=$(LD_LIBRARY_PATH=$libraries ldd "$dir/lib/libtorch_cpu.so" 2>&1 | awk '/not found/ {print $1}' | xargs)
  [[ -z $libraries ]] || echo "libtorch_cpu.so does not load without $libraries"
}

# Links $1 at .deps/torch and ends the search, or says why not.
take_torch() {
  local dir=$1 origin=$2 problem
  problem=$(torch_problem "$dir")
  if [[ -n $problem ]]; then
    say "libtorch from $origin ($dir) is passed over: $problem"
    return 1
  fi
  dir=$(realpath "$dir")
  if [[ ! .deps/torch -ef $dir ]]; then
    rm -rf .deps/torch.link
    ln -s "${dir#"$PWD/.deps/"}" .deps/torch.link
    mv -fT .deps/torch.link .deps/torch
    say "libtorch $(version_of_torch "$dir") from $origin: $dir"
  fi
}

# Unpacks archives into the folder $1, all or nothing.
unpack_into() {
  local target=$1 archive
  shift
  rm -rf "$target.partial"
  for archive in "$@"; do
    if ! python3 -m zipfile -e "$archive" "$target.partial" 2> >(tail -n 1 >&2); then
      rm -rf "$target.partial"
      say "$archive is not a whole zip archive"
      return 1
    fi
  done
  rm -rf "$target"
  mv "$target.partial" "$target"
}

# The official zip holds one folder, libtorch/.
take_torch_zip() {
  local zip=$1 target
  target=.deps/$(basename "$zip" .zip)-$(stat -c %s "$zip")
  if [[ ! -d $target ]]; then
    say "unpacking $zip into $target"
    unpack_into "$target" "$zip" || return 1
  fi
  take_torch "$target/libtorch" "$zip"
}

# Where python3 would import torch from, found without importing it.
python_torch() {
  python3 -c 'import importlib.util
spec = importlib.util.find_spec("torch")
print(spec.submodule_search_locations[0] if spec and spec.submodule_search_locations else "")' 2>/dev/null
}

# A python3 that has pip: the first of PATH may lack it where the system's has it.
python_with_pip() {
  local python
  for python in python3 /usr/bin/python3; do
    "$python" -m pip --version >/dev/null 2>&1 && echo "$python" && return
  done
  fail "no python3 here has pip, which downloads libtorch: install python3-pip, or set TORCH_DIR or LIBTORCH_ZIP"
}

# Downloads one requirement into .deps/wheels, where only whole files arrive.
download_wheel() {
  local requirement=$1 machine python platforms=() tag file
  machine=$(uname -m)
  python=$(python_with_pip)
  for tag in manylinux_2_28 manylinux_2_27 manylinux_2_26 manylinux_2_25 manylinux_2_24 manylinux_2_17 manylinux2014; do
    platforms+=(--platform "${tag}_$machine")
  done
  rm -rf .deps/wheels.partial
  mkdir -p .deps/wheels .deps/wheels.partial/tmp
  TMPDIR=$PWD/.deps/wheels.partial/tmp "$python" -m pip download --quiet --no-cache-dir --disable-pip-version-check --no-deps \
    --only-binary=:all: --python-version 3.11 --implementation cp --abi cp311 "${platforms[@]}" \
    --dest .deps/wheels.partial "$requirement" </dev/null || return 1
  for file in .deps/wheels.partial/*.whl; do mv "$file" .deps/wheels/; done
  rm -rf .deps/wheels.partial
}

download_wheels() {
  local requirement name
  for requirement in "torch==$torch_version" "${torch_companions[@]}"; do
    name=${requirement%%==*}
    compgen -G ".deps/wheels/${name//-/_}-*.whl" >/dev/null && continue
    say "downloading $requirement from PyPI ($([[ $name == torch ]] && echo 'libtorch, 530 MB' || echo 'libtorch_cpu.so needs it to load'))"
    download_wheel "$requirement" ||
      fail "pip could not download $requirement. Check the network and run script/bootstrap again, or set TORCH_DIR or LIBTORCH_ZIP."
  done
}

download_torch() {
  local target=.deps/torch-$torch_version free_mb
  if [[ ! -d $target ]]; then
    free_mb=$(df -Pm .deps | awk 'NR == 2 {print $4}')
    ((free_mb > 2500)) || fail "$PWD/.deps has $free_mb MB left; unpacking libtorch needs 2500. Free some, or set TORCH_DIR."
    download_wheels
    say "unpacking libtorch into $target"
    if ! unpack_into "$target" .deps/wheels/*.whl; then
      say "downloading again"
      rm -rf .deps/wheels
      download_wheels
      unpack_into "$target" .deps/wheels/*.whl || fail "cannot unpack libtorch into $PWD/$target"
    fi
  fi
  rm -rf .deps/wheels
  take_torch "$target/torch" "PyPI"
}

find_torch() {
  local prefix dir zip
  rm -rf .deps/*.partial .deps/torch.link
  if [[ -n ${TORCH_DIR:-} ]]; then
    take_torch "$TORCH_DIR" TORCH_DIR && return
    fail "TORCH_DIR is set but cannot be used; unset it to let script/bootstrap choose"
  fi
  while read -r -d: prefix; do
    for dir in "$prefix" "$prefix/../../.." "$prefix/libtorch"; do
      [[ -n $prefix && -e $dir/lib/libtorch_cpu.so ]] && take_torch "$dir" CMAKE_PREFIX_PATH && return
    done
  done <<<"${CMAKE_PREFIX_PATH:-}:"
  if [[ -n ${LIBTORCH_ZIP:-} ]]; then
    [[ -r $LIBTORCH_ZIP ]] || fail "LIBTORCH_ZIP: no readable file at $LIBTORCH_ZIP"
    take_torch_zip "$LIBTORCH_ZIP" && return
    fail "LIBTORCH_ZIP is set but cannot be used; unset it to let script/bootstrap choose"
  fi
  [[ -e .deps/torch ]] && take_torch .deps/torch "an earlier run" && return
  dir=$(python_torch) && [[ -n $dir ]] && take_torch "$dir" "python3" && return
  for zip in libtorch*.zip; do
    [[ -e $zip ]] && take_torch_zip "$zip" && return
  done
  [[ -d libtorch ]] && take_torch libtorch "the project's folder" && return
  download_torch || fail "the downloaded libtorch cannot be used; remove .deps/torch-$torch_version and run script/bootstrap again"
}
