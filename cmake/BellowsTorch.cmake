# bellows::torch: libtorch as an imported target. Used by this build and, installed, by bellowsConfig.cmake.
#
# Looked for in this order: TORCH_DIR (variable, then environment), the prefixes of CMAKE_PREFIX_PATH, and
# BELLOWS_TORCH_DEFAULT: `.deps/torch`, where script/bootstrap puts or links one; in an installed package the root it was
# built with. A root holds `include/` and `lib/`. The wheel's own TorchConfig.cmake insists on a CUDA toolkit even for
# programs that use the CPU only, so the target is our own.
# Sets BELLOWS_TORCH_ROOT and BELLOWS_TORCH_VERSION, or BELLOWS_TORCH_ERROR.
set(BELLOWS_TORCH_TESTED 2.11.0)
unset(BELLOWS_TORCH_ERROR)

set(_bellows_torch_candidates "${TORCH_DIR}" "$ENV{TORCH_DIR}")
string(REPLACE ":" ";" _bellows_env_prefixes "$ENV{CMAKE_PREFIX_PATH}")
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH _bellows_env_prefixes)
  list(APPEND _bellows_torch_candidates ${_prefix} ${_prefix}/../../.. ${_prefix}/libtorch)
endforeach()
list(APPEND _bellows_torch_candidates ${BELLOWS_TORCH_DEFAULT})

set(BELLOWS_TORCH_ROOT "BELLOWS_TORCH_ROOT-NOTFOUND")
foreach(_root IN LISTS _bellows_torch_candidates)
  if(_root AND EXISTS "${_root}/include/ATen/core/Tensor.h" AND EXISTS "${_root}/lib/libtorch_cpu.so")
    get_filename_component(BELLOWS_TORCH_ROOT "${_root}" REALPATH)
    break()
  endif()
endforeach()
if(NOT BELLOWS_TORCH_ROOT)
  set(BELLOWS_TORCH_ERROR "bellows: no libtorch found. Expected TORCH_DIR or CMAKE_PREFIX_PATH to name a folder with include/ \
and lib/libtorch_cpu.so (libtorch ${BELLOWS_TORCH_TESTED} is tested). Run script/bootstrap in the sources of Bellows, or give -DTORCH_DIR=...")
  return()
endif()
set(_torch_version_header "${BELLOWS_TORCH_ROOT}/include/torch/headeronly/version.h")
if(NOT EXISTS "${_torch_version_header}")
  set(_torch_version_header "${BELLOWS_TORCH_ROOT}/include/torch/csrc/api/include/torch/version.h")
endif()
file(STRINGS "${_torch_version_header}" _version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9;]" "" _version_lines "${_version_lines}")
list(JOIN _version_lines "." BELLOWS_TORCH_VERSION)
message(STATUS "bellows: libtorch ${BELLOWS_TORCH_VERSION} in ${BELLOWS_TORCH_ROOT}")
if(BELLOWS_TORCH_VERSION VERSION_LESS 2.11)
  set(BELLOWS_TORCH_ERROR "bellows: libtorch ${BELLOWS_TORCH_VERSION} in ${BELLOWS_TORCH_ROOT} is too old; expected ${BELLOWS_TORCH_TESTED}. \
Give -DTORCH_DIR= of a newer one.")
  return()
elseif(BELLOWS_TORCH_VERSION VERSION_GREATER_EQUAL 2.12)
  message(WARNING "bellows: libtorch ${BELLOWS_TORCH_VERSION} is untested; ${BELLOWS_TORCH_TESTED} is what the tests pass with.")
endif()

if(NOT TARGET bellows_torch)
  add_library(bellows_torch INTERFACE IMPORTED GLOBAL)
  add_library(bellows::torch ALIAS bellows_torch)
endif()
# -idirafter: the wheel also ships fmt and protobuf headers, which must not shadow the system's.
set(_torch_flags "SHELL:-idirafter ${BELLOWS_TORCH_ROOT}/include"
                 "SHELL:-idirafter ${BELLOWS_TORCH_ROOT}/include/torch/csrc/api/include")
set(_torch_libraries ${BELLOWS_TORCH_ROOT}/lib/libtorch_cpu.so ${BELLOWS_TORCH_ROOT}/lib/libc10.so)
if(BELLOWS_CUDA)
  list(APPEND _torch_libraries ${BELLOWS_TORCH_ROOT}/lib/libtorch_cuda.so ${BELLOWS_TORCH_ROOT}/lib/libc10_cuda.so)
endif()
# Our kernels run on libtorch's own threads (kernels/parallel.cpp): they need the very OpenMP library that libtorch_cpu loads. The
# wheel brings libgomp.so.1, the official zip one with a hash in its name, other builds Intel's with the same entry points.
file(GLOB _openmp ${BELLOWS_TORCH_ROOT}/lib/libgomp*.so* ${BELLOWS_TORCH_ROOT}/lib/libiomp5.so)
if(_openmp)
  list(GET _openmp 0 _openmp)
else()
  set(_openmp -Wl,-l:libgomp.so.1)
endif()
list(APPEND _torch_libraries ${_openmp})
# A CUDA-enabled libtorch_cpu needs the CUDA runtime to load even where no GPU is used; the wheel keeps it beside torch/.
file(GLOB _cuda_runtime ${BELLOWS_TORCH_ROOT}/../nvidia/*/lib)
set(_rpaths "-Wl,-rpath,${BELLOWS_TORCH_ROOT}/lib")
foreach(_dir IN LISTS _cuda_runtime)
  get_filename_component(_dir "${_dir}" REALPATH)
  list(APPEND _rpaths "-Wl,-rpath,${_dir}" "-Wl,-rpath-link,${_dir}")
endforeach()
# Old-style DT_RPATH is searched for libraries of libraries too; the wheel's own libraries carry no path to the CUDA runtime.
set_target_properties(bellows_torch PROPERTIES
  INTERFACE_COMPILE_OPTIONS "${_torch_flags}"
  INTERFACE_LINK_OPTIONS "${_rpaths};-Wl,--disable-new-dtags;-Wl,--allow-shlib-undefined"
  INTERFACE_LINK_LIBRARIES "-Wl,--push-state,--no-as-needed;${_torch_libraries};-Wl,--pop-state")
