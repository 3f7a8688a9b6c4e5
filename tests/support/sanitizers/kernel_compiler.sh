#!/bin/sh
# BELLOWS_CXX in a sanitizer build: generated kernels are checked, too. The version says so, as entries of the kernel cache go by it.
flags="-fsanitize=$BELLOWS_TEST_SANITIZE -fno-sanitize-recover=all -fno-omit-frame-pointer -g1"
if [ "$1" = --version ]; then
  g++ --version | sed "1s/\$/ $flags/"
else
  exec g++ "$@" $flags
fi
