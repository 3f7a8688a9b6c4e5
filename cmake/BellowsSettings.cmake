# Flags that every target of this build shares. They must be equal for all, or the precompiled header is not reused.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
# For executables too: one precompiled header serves all only if all have the same code model.
add_compile_options(-fPIC)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 10)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
# NDEBUG in every build: libtorch is a release build, and without it at::RecordFunction has a member more in our
# sources than in libtorch's.
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1 -DNDEBUG")

# The precompiled header fills GCC's heap: at its own limit GCC would search the whole of it for garbage many times a source.
add_compile_options("$<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1500000>")

add_library(bellows_flags INTERFACE)
target_compile_options(bellows_flags INTERFACE -Wall -Wextra -Wshadow -Wno-missing-field-initializers $<$<BOOL:${BELLOWS_WERROR}>:-Werror>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)  # a unity batch is one file, whatever GCC thinks
if(BELLOWS_SANITIZE)
  add_compile_options(-fsanitize=${BELLOWS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${BELLOWS_SANITIZE})
endif()

find_program(BELLOWS_CCACHE ccache)
if(BELLOWS_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${BELLOWS_CCACHE})
endif()
find_program(BELLOWS_LLD ld.lld)
if(BELLOWS_LLD)
  add_link_options(-fuse-ld=lld)
endif()
find_package(Threads REQUIRED)
