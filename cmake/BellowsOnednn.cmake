# bellows_onednn: oneDNN 3 as an imported target, where there is one. Used by this build and, installed, by bellowsConfig.cmake.
#
# Looked for in this order: DNNL_DIR (variable, then environment) and BELLOWS_ONEDNN_DEFAULT: `.deps/onednn`, where
# script/bootstrap puts or links one; in an installed package the root it was built with. A root holds `include/` and `lib/`;
# its lib/cmake/dnnl is taken, too. It should run on oneTBB, as the generated kernels do, so that both share their threads.
# Sets BELLOWS_ONEDNN_ROOT, or leaves it empty.
set(BELLOWS_ONEDNN_ROOT "")
foreach(_root IN ITEMS "${DNNL_DIR}" "${DNNL_DIR}/../../.." "$ENV{DNNL_DIR}" "$ENV{DNNL_DIR}/../../.." "${BELLOWS_ONEDNN_DEFAULT}")
  if(EXISTS "${_root}/include/oneapi/dnnl/dnnl.hpp" AND EXISTS "${_root}/lib/libdnnl.so")
    file(STRINGS "${_root}/include/oneapi/dnnl/dnnl_version.h" _onednn_major REGEX "define DNNL_VERSION_MAJOR +3$")
    if(_onednn_major)
      get_filename_component(BELLOWS_ONEDNN_ROOT "${_root}" REALPATH)
      break()
    endif()
  endif()
endforeach()
if(NOT BELLOWS_ONEDNN_ROOT)
  message(STATUS "bellows: no oneDNN 3 (DNNL_DIR, script/bootstrap): compiled functions leave convolutions to libtorch")
  return()
endif()
message(STATUS "bellows: oneDNN in ${BELLOWS_ONEDNN_ROOT}")
if(NOT TARGET bellows_onednn)
  add_library(bellows_onednn INTERFACE IMPORTED GLOBAL)
endif()
# libtorch's headers hold those of its own oneDNN, and come later, with -idirafter.
set_target_properties(bellows_onednn PROPERTIES
  INTERFACE_COMPILE_OPTIONS "SHELL:-isystem ${BELLOWS_ONEDNN_ROOT}/include"
  INTERFACE_LINK_OPTIONS "-Wl,-rpath,${BELLOWS_ONEDNN_ROOT}/lib"
  INTERFACE_LINK_LIBRARIES "-Wl,--push-state,--as-needed;${BELLOWS_ONEDNN_ROOT}/lib/libdnnl.so;-Wl,--pop-state")
