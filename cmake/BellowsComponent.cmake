# bellows_component(NAME [HEAVY] SOURCES … [COMPONENTS …] [LIBS …])
#
# One folder of bellows/ as one static library `bellows_NAME` (alias `bellows::NAME`).
#   HEAVY  the sources see torch/torch.h: they share one precompiled header
#   COMPONENTS  components on lower levels that this one uses
#   LIBS   third-party targets
add_library(bellows_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/pch.cpp)
target_link_libraries(bellows_pch PRIVATE bellows_flags bellows_torch)
target_precompile_headers(bellows_pch PRIVATE <torch/torch.h>)

function(bellows_use_pch TARGET)
  target_precompile_headers(${TARGET} REUSE_FROM bellows_pch)
endfunction()

function(bellows_component NAME)
  cmake_parse_arguments(ARG "HEAVY" "" "SOURCES;COMPONENTS;LIBS" ${ARGN})
  add_library(bellows_${NAME} STATIC ${ARG_SOURCES})
  add_library(bellows::${NAME} ALIAS bellows_${NAME})
  set_target_properties(bellows_${NAME} PROPERTIES EXPORT_NAME ${NAME} UNITY_BUILD ${BELLOWS_UNITY})
  target_include_directories(bellows_${NAME} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  list(TRANSFORM ARG_COMPONENTS PREPEND bellows_)
  target_link_libraries(bellows_${NAME} PUBLIC bellows_torch ${ARG_COMPONENTS} Threads::Threads
                                        PRIVATE $<BUILD_INTERFACE:bellows_flags> ${ARG_LIBS})
  target_compile_features(bellows_${NAME} INTERFACE cxx_std_20)
  if(ARG_HEAVY)
    bellows_use_pch(bellows_${NAME})
  endif()
  set_property(GLOBAL APPEND PROPERTY BELLOWS_COMPONENTS ${NAME})
  set_property(GLOBAL APPEND PROPERTY BELLOWS_LIBS ${ARG_LIBS})
endfunction()

# libgomp is not instrumented: under ThreadSanitizer its threads would be reported. libtorch is not either, so containers that it
# filled look overflown to AddressSanitizer.
set(BELLOWS_TEST_ENVIRONMENT "GOMP_SPINCOUNT=20000" "BELLOWS_CACHE=${CMAKE_BINARY_DIR}/cache")
set(_suppressions ${PROJECT_SOURCE_DIR}/tests/support/sanitizers)
if(BELLOWS_SANITIZE MATCHES "thread")
  list(APPEND BELLOWS_TEST_ENVIRONMENT OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
       "TSAN_OPTIONS=suppressions=${_suppressions}/tsan.txt:halt_on_error=0:second_deadlock_stack=1:history_size=4:allocator_may_return_null=1:die_after_fork=0")
else()
  list(APPEND BELLOWS_TEST_ENVIRONMENT OMP_NUM_THREADS=2)
endif()
if(BELLOWS_SANITIZE MATCHES "address")
  list(APPEND BELLOWS_TEST_ENVIRONMENT
       "ASAN_OPTIONS=detect_container_overflow=0:detect_odr_violation=0:strict_init_order=1:allocator_may_return_null=1"
       "LSAN_OPTIONS=suppressions=${_suppressions}/lsan.txt:print_suppressions=0"
       "UBSAN_OPTIONS=print_stacktrace=1")
  # Kernels that are generated while a test runs are checked as what it was built of is.
  list(APPEND BELLOWS_TEST_ENVIRONMENT "BELLOWS_CXX=${_suppressions}/kernel_compiler.sh" "BELLOWS_TEST_SANITIZE=${BELLOWS_SANITIZE}")
endif()

# bellows_test(NAME [HEAVY] SOURCES … [COMPONENTS …] [LIBS …] [LABELS fast|dist|slow] [THREADS 2] [COST 0])
#
# ctest starts the tests with the highest COST (roughly their duration in seconds) first. On two cores, two tests with two THREADS each slow
# each other down, so a long test uses one thread if its results do not depend on the number of threads.
# One GoogleTest executable a component, built without optimisation: tests are compiled more often than they are run, and what they test
# is optimised. GCC reuses a precompiled header only at the level it was made at: tests/CMakeLists.txt makes one for the tests.
function(bellows_test NAME)
  cmake_parse_arguments(ARG "" "THREADS;COST" "LABELS" ${ARGN})
  bellows_test_program(${NAME} ${ARG_UNPARSED_ARGUMENTS})
  if(NOT ARG_LABELS)
    set(ARG_LABELS fast)
  endif()
  if(NOT ARG_COST)
    set(ARG_COST 0)
  endif()
  set(_environment ${BELLOWS_TEST_ENVIRONMENT})
  if(ARG_THREADS)
    list(APPEND _environment OMP_NUM_THREADS=${ARG_THREADS})
  endif()
  add_test(NAME ${NAME} COMMAND ${NAME} --gtest_output=json:${CMAKE_BINARY_DIR}/test-results/${NAME}.json)
  # Label gtest: script/test counts the cases of the JSON report.
  set_tests_properties(${NAME} PROPERTIES LABELS "${ARG_LABELS};gtest" TIMEOUT 1200 COST ${ARG_COST} ENVIRONMENT "${_environment}")
endfunction()

# bellows_test_program(NAME [HEAVY] SOURCES … [COMPONENTS …] [LIBS …])
#
# The executable of bellows_test() alone, for tests that only a script runs, such as that of a bellows_peer_test().
function(bellows_test_program NAME)
  cmake_parse_arguments(ARG "HEAVY" "" "SOURCES;COMPONENTS;LIBS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  set_target_properties(${NAME} PROPERTIES UNITY_BUILD ${BELLOWS_UNITY})
  list(TRANSFORM ARG_COMPONENTS PREPEND bellows_)
  target_link_libraries(${NAME} PRIVATE ${ARG_COMPONENTS} bellows_torch bellows_flags ${ARG_LIBS} GTest::gmock GTest::gtest GTest::gtest_main)
  target_include_directories(${NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${NAME} PRIVATE -O0)
  target_compile_definitions(${NAME} PRIVATE BELLOWS_SOURCE_DIR="${PROJECT_SOURCE_DIR}" BELLOWS_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  if(ARG_HEAVY)
    target_precompile_headers(${NAME} REUSE_FROM bellows_test_pch)
  endif()
endfunction()

# bellows_peer_test(NAME SCRIPT PROGRAM PEER MODULE GOLDEN [ARG…])
#
# What we write, as another project's Python package reads it: `SCRIPT PROGRAM PYTHON tools/goldens/GOLDEN ARG…`. PYTHON is that of
# .deps/PEER, a side of the benchmarks: where MODULE was never installed there, the test is one of the slow ones and says what is missing.
function(bellows_peer_test NAME SCRIPT PROGRAM PEER MODULE GOLDEN)
  set(python ${PROJECT_SOURCE_DIR}/.deps/${PEER}/bin/python)
  execute_process(COMMAND ${python} -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('${MODULE}') is None)"
                  RESULT_VARIABLE missing OUTPUT_QUIET ERROR_QUIET)
  set(label slow)
  if(missing STREQUAL "0")
    set(label fast)
  endif()
  add_test(NAME ${NAME} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/${SCRIPT} $<TARGET_FILE:${PROGRAM}> ${python}
                                ${PROJECT_SOURCE_DIR}/tools/goldens/${GOLDEN} ${ARGN})
  set_tests_properties(${NAME} PROPERTIES LABELS ${label} TIMEOUT 300 ENVIRONMENT "${BELLOWS_TEST_ENVIRONMENT}")
endfunction()
