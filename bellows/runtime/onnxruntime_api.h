#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "bellows/runtime/shared_library.h"

namespace bellows::runtime::ort {

// Objects of ONNX Runtime.
struct Status;
struct Env;
struct Session;
struct SessionOptions;
struct RunOptions;
struct Value;
struct MemoryInfo;
struct TypeInfo;
struct TensorInfo;
struct Allocator;
struct CudaOptions;
struct TensorRtOptions;

using RunCallback = void (*)(void* user, Value** outputs, size_t count, Status* status);

/// The functions of ONNX Runtime's C API that Bellows calls. ONNX Runtime returns a table of functions (OrtApi). New
/// versions only append to the table, so that the position of each function is fixed.
/// Ref: onnxruntime_c_api.h, struct OrtApi
struct Functions {
  /// The newest version of the table of which a function is used (ONNX Runtime 1.17).
  static constexpr uint32_t api_version = 17;

  const char* (*error_message)(const Status*);
  Status* (*create_env)(int log_level, const char* name, Env**);
  Status* (*create_session)(const Env*, const char* path, const SessionOptions*, Session**);
  Status* (*run)(Session*, const RunOptions*, const char* const* input_names, const Value* const* inputs,
                 size_t input_count, const char* const* output_names, size_t output_count, Value** outputs);
  Status* (*create_session_options)(SessionOptions**);
  Status* (*set_log_severity)(SessionOptions*, int level);
  Status* (*set_optimization_level)(SessionOptions*, int level);
  Status* (*set_intra_op_threads)(SessionOptions*, int threads);
  Status* (*set_inter_op_threads)(SessionOptions*, int threads);
  Status* (*input_count)(const Session*, size_t*);
  Status* (*output_count)(const Session*, size_t*);
  Status* (*input_type)(const Session*, size_t index, TypeInfo**);
  Status* (*output_type)(const Session*, size_t index, TypeInfo**);
  Status* (*input_name)(const Session*, size_t index, Allocator*, char**);
  Status* (*output_name)(const Session*, size_t index, Allocator*, char**);
  Status* (*create_tensor)(const MemoryInfo*, void* data, size_t bytes, const int64_t* sizes, size_t dims, int type,
                           Value**);
  Status* (*is_tensor)(const Value*, int*);
  Status* (*tensor_data)(Value*, void**);
  Status* (*tensor_info_of_type)(const TypeInfo*, const TensorInfo**);  ///< null if the type is no tensor
  Status* (*element_type)(const TensorInfo*, int*);
  Status* (*dim_count)(const TensorInfo*, size_t*);
  Status* (*dims)(const TensorInfo*, int64_t*, size_t count);
  Status* (*dim_names)(const TensorInfo*, const char**, size_t count);
  Status* (*tensor_info)(const Value*, TensorInfo**);
  Status* (*create_cpu_memory_info)(int allocator, int memory, MemoryInfo**);
  Status* (*allocator_free)(Allocator*, void*);
  Status* (*default_allocator)(Allocator**);
  void (*release_status)(Status*);
  void (*release_session)(Session*);
  void (*release_value)(Value*);
  void (*release_type)(TypeInfo*);
  void (*release_tensor_info)(TensorInfo*);
  void (*release_session_options)(SessionOptions*);
  Status* (*available_providers)(char***, int* count);
  Status* (*release_available_providers)(char**, int count);
  Status* (*append_tensorrt)(SessionOptions*, const TensorRtOptions*);
  Status* (*create_tensorrt_options)(TensorRtOptions**);
  void (*release_tensorrt_options)(TensorRtOptions*);
  Status* (*append_cuda)(SessionOptions*, const CudaOptions*);
  Status* (*create_cuda_options)(CudaOptions**);
  void (*release_cuda_options)(CudaOptions*);
  Status* (*run_async)(Session*, const RunOptions*, const char* const* input_names, const Value* const* inputs,
                       size_t input_count, const char* const* output_names, size_t output_count, Value** outputs,
                       RunCallback, void* user);
  Status* (*append_openvino)(SessionOptions*, const char* const* keys, const char* const* values, size_t count);
};

/// The loaded library.
struct Library {
  SharedLibrary file;
  std::string missing{};  ///< "" if the functions can be used
  std::string version{};
  Functions call{};
};

/// Loads the library.
/// Params: place – the library or its folder; if it is empty, the library is searched
Library open_library(const std::string& place);

// Numbers of ONNX Runtime's enumerations.
inline constexpr int log_fatal = 4, optimize_all = 99, arena_allocator = 1, default_memory = 0;

}  // namespace bellows::runtime::ort
