#include "bellows/runtime/onnxruntime_api.h"

namespace bellows::runtime::ort {

namespace {

/// OrtApiBase of onnxruntime_c_api.h.
struct Base {
  const void* (*table)(uint32_t version);
  const char* (*version)();
};

/// Sets `function` to the entry at `position` of the table.
template <class Function>
void take(const void* table, size_t position, Function& function) {
  function = reinterpret_cast<Function>(static_cast<void* const*>(table)[position]);
}

void take_session_functions(const void* table, Functions& call) {
  take(table, 2, call.error_message);
  take(table, 3, call.create_env);
  take(table, 7, call.create_session);
  take(table, 9, call.run);
  take(table, 10, call.create_session_options);
  take(table, 22, call.set_log_severity);
  take(table, 23, call.set_optimization_level);
  take(table, 24, call.set_intra_op_threads);
  take(table, 25, call.set_inter_op_threads);
  take(table, 30, call.input_count);
  take(table, 31, call.output_count);
  take(table, 33, call.input_type);
  take(table, 34, call.output_type);
  take(table, 36, call.input_name);
  take(table, 37, call.output_name);
  take(table, 260, call.run_async);
}

void take_tensor_functions(const void* table, Functions& call) {
  take(table, 49, call.create_tensor);
  take(table, 50, call.is_tensor);
  take(table, 51, call.tensor_data);
  take(table, 55, call.tensor_info_of_type);
  take(table, 60, call.element_type);
  take(table, 61, call.dim_count);
  take(table, 62, call.dims);
  take(table, 63, call.dim_names);
  take(table, 65, call.tensor_info);
  take(table, 69, call.create_cpu_memory_info);
  take(table, 76, call.allocator_free);
  take(table, 78, call.default_allocator);
}

void take_release_functions(const void* table, Functions& call) {
  take(table, 93, call.release_status);
  take(table, 95, call.release_session);
  take(table, 96, call.release_value);
  take(table, 98, call.release_type);
  take(table, 99, call.release_tensor_info);
  take(table, 100, call.release_session_options);
}

void take_provider_functions(const void* table, Functions& call) {
  take(table, 125, call.available_providers);
  take(table, 126, call.release_available_providers);
  take(table, 170, call.append_tensorrt);
  take(table, 171, call.create_tensorrt_options);
  take(table, 174, call.release_tensorrt_options);
  take(table, 204, call.append_cuda);
  take(table, 205, call.create_cuda_options);
  take(table, 208, call.release_cuda_options);
  take(table, 275, call.append_openvino);
}

LibrarySearch search_at(const std::string& place) {
  return {.title = "ONNX Runtime",
          .file = "libonnxruntime.so",
          .place = place,
          .variable = "BELLOWS_ONNXRUNTIME",
          .folders = {"/opt/onnxruntime/lib"},
          .wheel = "onnxruntime/capi",
          .advice = "Install it with `pip install onnxruntime`, or unpack a release of ONNX Runtime."};
}

}  // namespace

Library open_library(const std::string& place) {
  Library library{.file = SharedLibrary(search_at(place))};
  library.missing = library.file.missing();
  if (!library.missing.empty()) return library;
  const auto get_base = library.file.find<const Base* (*)()>("OrtGetApiBase");
  if (!get_base) {
    library.missing = "ONNX Runtime: " + library.file.path() + " is another library, because it has no OrtGetApiBase.";
    return library;
  }
  library.version = get_base()->version();
  const void* const table = get_base()->table(Functions::api_version);
  if (!table) {
    library.missing = "ONNX Runtime: expected version 1.17 or newer, found " + library.version + " (" +
                      library.file.path() + "). Install a newer version.";
    return library;
  }
  take_session_functions(table, library.call);
  take_tensor_functions(table, library.call);
  take_release_functions(table, library.call);
  take_provider_functions(table, library.call);
  return library;
}

}  // namespace bellows::runtime::ort
