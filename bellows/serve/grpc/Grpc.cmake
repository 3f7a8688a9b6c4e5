# gRPC is optional: without it, the server answers HTTP only.
set(BELLOWS_GRPC AUTO CACHE STRING "Build the model server with gRPC: AUTO, ON or OFF")
find_program(BELLOWS_GRPC_PLUGIN grpc_cpp_plugin)
find_path(BELLOWS_GRPC_INCLUDE grpcpp/server_builder.h)
set(_grpc_libraries)
foreach(_name grpc++ grpc gpr absl_synchronization)
  find_library(BELLOWS_${_name}_LIBRARY ${_name})
  list(APPEND _grpc_libraries ${BELLOWS_${_name}_LIBRARY})
endforeach()
if(BELLOWS_GRPC STREQUAL "OFF")
  set(_grpc FALSE)
elseif(BELLOWS_GRPC_PLUGIN AND BELLOWS_GRPC_INCLUDE AND NOT _grpc_libraries MATCHES "NOTFOUND")
  set(_grpc TRUE)
elseif(BELLOWS_GRPC STREQUAL "ON")
  message(FATAL_ERROR "BELLOWS_GRPC=ON, but gRPC was not found. Install libgrpc++-dev and protobuf-compiler-grpc.")
else()
  message(STATUS "gRPC not found: `bellows serve` answers HTTP only. Install libgrpc++-dev and protobuf-compiler-grpc.")
  set(_grpc FALSE)
endif()
if(NOT _grpc)
  target_sources(bellows_serve PRIVATE grpc/absent.cpp)
  return()
endif()
set(BELLOWS_HAS_GRPC TRUE CACHE INTERNAL "")
set(BELLOWS_GRPC_LIBRARIES "${_grpc_libraries}" CACHE INTERNAL "")  # for tests

target_sources(bellows_serve PRIVATE grpc/call_context.cpp grpc/control_calls.cpp grpc/grpc_server.cpp grpc/infer_call.cpp
               grpc/infer_message.cpp grpc/response_buffer.cpp grpc/stream_call.cpp)
target_include_directories(bellows_serve SYSTEM PRIVATE ${BELLOWS_GRPC_INCLUDE})
target_link_libraries(bellows_serve PRIVATE ${_grpc_libraries})
set_property(GLOBAL APPEND PROPERTY BELLOWS_LIBS ${_grpc_libraries})

set(_grpc_generated ${CMAKE_CURRENT_BINARY_DIR}/generated/bellows/serve/grpc/inference)
add_custom_command(OUTPUT ${_grpc_generated}.pb.cc ${_grpc_generated}.pb.h ${_grpc_generated}.grpc.pb.cc ${_grpc_generated}.grpc.pb.h
  COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_CURRENT_BINARY_DIR}/generated
  COMMAND ${Protobuf_PROTOC_EXECUTABLE} --cpp_out=${CMAKE_CURRENT_BINARY_DIR}/generated --grpc_out=${CMAKE_CURRENT_BINARY_DIR}/generated
          --plugin=protoc-gen-grpc=${BELLOWS_GRPC_PLUGIN} -I${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/grpc/inference.proto
  DEPENDS grpc/inference.proto model_config.proto VERBATIM)
add_custom_target(bellows_serve_grpc_generated DEPENDS ${_grpc_generated}.pb.h ${_grpc_generated}.grpc.pb.h)
add_dependencies(bellows_serve_generated bellows_serve_grpc_generated)
target_sources(bellows_serve PRIVATE ${_grpc_generated}.pb.cc ${_grpc_generated}.grpc.pb.cc)
set_source_files_properties(${_grpc_generated}.pb.cc ${_grpc_generated}.grpc.pb.cc PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS -w)
