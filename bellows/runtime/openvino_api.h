#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bellows/runtime/shared_library.h"

namespace bellows::runtime::ov {

// Objects of OpenVINO.
struct Core;
struct Model;
struct CompiledModel;
struct Request;
struct Port;
struct Tensor;

struct Shape {
  int64_t rank;
  int64_t* dims;
};
struct Range {
  int64_t min, max;  ///< max is -1 if there is no limit
};
struct PartialShape {
  Range rank;
  Range* dims;
};
struct Version {
  const char* build;
  const char* description;
};

/// The functions of OpenVINO's C API that Bellows calls. All functions that return an int return 0 on success.
/// Ref: openvino/c/openvino.h
struct Functions {
  int (*version)(Version*);
  void (*free_version)(Version*);
  const char* (*status_text)(int status);
  const char* (*last_error)();  ///< null in versions before 2023.1
  void (*free_text)(const char*);
  int (*create_core)(Core**);
  int (*read_model)(const Core*, const char* path, const char* weights, Model**);
  int (*read_model_from_text)(const Core*, const char* text, size_t length, const Tensor* weights, Model**);
  void (*free_model)(Model*);
  int (*model_input)(const Model*, size_t index, Port**);
  int (*compile)(const Core*, const Model*, const char* device, size_t properties, CompiledModel**, ...);
  void (*free_compiled)(CompiledModel*);
  int (*input_count)(const CompiledModel*, size_t*);
  int (*output_count)(const CompiledModel*, size_t*);
  int (*input)(const CompiledModel*, size_t index, Port**);
  int (*output)(const CompiledModel*, size_t index, Port**);
  int (*port_name)(const Port*, char**);
  int (*port_type)(const Port*, int*);
  int (*port_shape)(const Port*, PartialShape*);
  void (*free_port)(Port*);
  void (*free_partial_shape)(PartialShape*);
  int (*create_request)(const CompiledModel*, Request**);
  void (*free_request)(Request*);
  int (*set_input)(Request*, size_t index, const Tensor*);
  int (*get_output)(const Request*, size_t index, Tensor**);
  int (*infer)(Request*);
  int (*start)(Request*);
  int (*wait)(Request*);
  int (*create_tensor)(int type, Shape, void* data, Tensor**);
  int (*tensor_shape)(const Tensor*, Shape*);
  int (*tensor_type)(const Tensor*, int*);
  int (*tensor_data)(const Tensor*, void**);
  void (*free_tensor)(Tensor*);
  int (*free_shape)(Shape*);
};

/// The loaded library.
struct Library {
  SharedLibrary file;
  std::string missing{};  ///< "" if the functions can be used
  std::string version{};
  Functions call{};
  Core* core = nullptr;  ///< never released, because models may still exist when the process ends
  std::vector<std::pair<int, c10::ScalarType>> dtypes{};  ///< numbers of dtypes, which differ between versions

  /// Throws: c10::ValueError with OpenVINO's message if the status is not 0
  void check(int status, const std::string& what) const;
};

/// Loads the library and creates a core.
/// Params: place – the library or its folder; if it is empty, the library is searched
Library open_library(const std::string& place);

}  // namespace bellows::runtime::ov
