#!/usr/bin/env bash
# Runs the tests of back ends with the libraries of Python packages: peers.sh PROGRAM PYTHON PACKAGE_SCRIPT
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
packages=$("$2" -c 'import onnxruntime, os; print(os.path.dirname(os.path.dirname(onnxruntime.__file__)))')
TORCHINDUCTOR_CACHE_DIR=$folder/inductor "$2" "$3" "$folder/net.pt2" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
BELLOWS_ONNXRUNTIME=$packages/onnxruntime/capi BELLOWS_OPENVINO=$packages/openvino/libs \
  BELLOWS_TEST_PACKAGE=$folder/net.pt2 "$1" --gtest_brief=1
