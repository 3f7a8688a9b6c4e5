#include "bellows/runtime/openvino_api.h"

#include <cstdlib>

namespace bellows::runtime::ov {

namespace {

LibrarySearch search_at(const std::string& place) {
  std::vector<std::string> folders;
  if (const char* root = std::getenv("INTEL_OPENVINO_DIR"))
    folders.push_back(std::string(root) + "/runtime/lib/intel64");
  folders.emplace_back("/opt/intel/openvino/runtime/lib/intel64");
  return {.title = "OpenVINO",
          .file = "libopenvino_c.so",
          .place = place,
          .variable = "BELLOWS_OPENVINO",
          .folders = std::move(folders),
          .wheel = "openvino/libs",
          .advice = "Install it with `pip install openvino`, or with the OpenVINO packages of your system."};
}

/// Returns the name of the first function that the library lacks, or "".
std::string take_functions(const SharedLibrary& file, Functions& call) {
  std::string missing;
  const auto take = [&]<class Function>(const char* name, Function& function) {
    function = file.find<Function>(name);
    if (!function && missing.empty()) missing = name;
  };
  take("ov_get_openvino_version", call.version);
  take("ov_version_free", call.free_version);
  take("ov_get_error_info", call.status_text);
  take("ov_free", call.free_text);
  take("ov_core_create", call.create_core);
  take("ov_core_read_model", call.read_model);
  take("ov_core_read_model_from_memory_buffer", call.read_model_from_text);
  take("ov_model_free", call.free_model);
  take("ov_model_const_input_by_index", call.model_input);
  take("ov_core_compile_model", call.compile);
  take("ov_compiled_model_free", call.free_compiled);
  take("ov_compiled_model_inputs_size", call.input_count);
  take("ov_compiled_model_outputs_size", call.output_count);
  take("ov_compiled_model_input_by_index", call.input);
  take("ov_compiled_model_output_by_index", call.output);
  take("ov_port_get_any_name", call.port_name);
  take("ov_port_get_element_type", call.port_type);
  take("ov_port_get_partial_shape", call.port_shape);
  take("ov_output_const_port_free", call.free_port);
  take("ov_partial_shape_free", call.free_partial_shape);
  take("ov_compiled_model_create_infer_request", call.create_request);
  take("ov_infer_request_free", call.free_request);
  take("ov_infer_request_set_input_tensor_by_index", call.set_input);
  take("ov_infer_request_get_output_tensor_by_index", call.get_output);
  take("ov_infer_request_infer", call.infer);
  take("ov_infer_request_start_async", call.start);
  take("ov_infer_request_wait", call.wait);
  take("ov_tensor_create_from_host_ptr", call.create_tensor);
  take("ov_tensor_get_shape", call.tensor_shape);
  take("ov_tensor_get_element_type", call.tensor_type);
  take("ov_tensor_data", call.tensor_data);
  take("ov_tensor_free", call.free_tensor);
  take("ov_shape_free", call.free_shape);
  call.last_error = file.find<decltype(call.last_error)>("ov_get_last_err_msg");
  return missing;
}

/// The name of a dtype in models, in descriptions of ports, and in libtorch.
struct DtypeName {
  const char* name;
  const char* precision;
  c10::ScalarType dtype;
};

/// A model with one input of this type.
std::string model_of(const DtypeName& type) {
  const std::string port = std::string(R"(<port id="0" precision=")") + type.precision + R"("><dim>1</dim></port>)";
  return std::string(R"(<net name="types" version="11"><layers><layer id="0" name="x" type="Parameter" )") +
         R"(version="opset1"><data shape="1" element_type=")" + type.name + R"("/><output>)" + port +
         R"(</output></layer><layer id="1" name="y" type="Result" version="opset1"><input>)" + port +
         R"(</input></layer></layers><edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/></edges></net>)";
}

/// Finds the numbers of dtypes by reading models, because the enumeration of dtypes changes between versions.
void find_dtypes(Library& library) {
  static constexpr DtypeName names[] = {{"f32", "FP32", c10::kFloat},     {"f16", "FP16", c10::kHalf},
                                        {"bf16", "BF16", c10::kBFloat16}, {"f64", "FP64", c10::kDouble},
                                        {"i8", "I8", c10::kChar},         {"u8", "U8", c10::kByte},
                                        {"i16", "I16", c10::kShort},      {"i32", "I32", c10::kInt},
                                        {"i64", "I64", c10::kLong},       {"boolean", "BOOL", c10::kBool}};
  for (const DtypeName& type : names) {
    const std::string text = model_of(type);
    Model* model = nullptr;
    library.check(library.call.read_model_from_text(library.core, text.c_str(), text.size(), nullptr, &model),
                  type.name);
    Port* port = nullptr;
    int number = -1;
    int status = library.call.model_input(model, 0, &port);
    if (status == 0) status = library.call.port_type(port, &number);
    if (port) library.call.free_port(port);
    library.call.free_model(model);
    library.check(status, type.name);
    library.dtypes.emplace_back(number, type.dtype);
  }
}

}  // namespace

void Library::check(int status, const std::string& what) const {
  if (status == 0) return;
  std::string message = call.status_text(status);
  constexpr int invalid_argument = -14;  // is found before the call, so the last error is that of another call
  const char* const detail = call.last_error && status != invalid_argument ? call.last_error() : nullptr;
  if (detail) {
    if (*detail) message = detail;
    call.free_text(detail);
  }
  TORCH_CHECK_VALUE(false, what, ": ", message);
}

Library open_library(const std::string& place) {
  Library library{.file = SharedLibrary(search_at(place))};
  library.missing = library.file.missing();
  if (!library.missing.empty()) return library;
  if (const std::string name = take_functions(library.file, library.call); !name.empty()) {
    library.missing = "OpenVINO: " + library.file.path() + " has no function " + name +
                      ". Expected version 2022.3 or newer. Install a newer version.";
    return library;
  }
  try {
    Version version{};
    library.check(library.call.version(&version), "OpenVINO");
    library.version = version.build;
    library.call.free_version(&version);
    library.check(library.call.create_core(&library.core), "OpenVINO");
    find_dtypes(library);
  } catch (const c10::Error& error) {
    library.missing = std::string("OpenVINO: ") + library.file.path() + " cannot be used: " + error.msg() +
                      ". Check that all of its libraries are in the same folder.";
  }
  return library;
}

}  // namespace bellows::runtime::ov
