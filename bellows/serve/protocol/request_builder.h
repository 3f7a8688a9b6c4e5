#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/serve/request_error.h"
#include "bellows/serve/v2_protocol.h"

namespace bellows::serve {

/// Throws: RequestError with status 400 and the text of `parts` if the condition is false
template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) throw RequestError(status_bad_request, c10::str(parts...));
}

/// Builds an InferRequest, and checks it against the model. The readers of HTTP and gRPC requests use this class, so that
/// both protocols accept the same requests and give the same errors.
/// Throws: all functions throw RequestError with status 400 if the request contradicts the model
class RequestBuilder {
 public:
  /// Params: model – must exist as long as the builder
  explicit RequestBuilder(const ModelSignature& model);

  /// The request, for its simple members.
  InferRequest& request() { return request_; }

  /// Returns the index of the input with this name, which must not have been set.
  size_t input_named(std::string_view name) const;
  /// Checks the dtype and the shape of an input, and that all inputs have the same number of rows.
  /// Returns: the number of elements
  int64_t check_input(size_t index, std::string_view datatype, const std::vector<int64_t>& shape);
  void set_input(size_t index, at::Tensor tensor) { request_.inputs[index] = std::move(tensor); }
  void set_bytes(size_t index, BytesTensor tensor);
  /// Checks that all inputs are set.
  void check_complete() const;

  /// Returns a requested output with this name, which must not have been requested before.
  RequestedOutput output_named(std::string_view name) const;
  void add_output(RequestedOutput output) { request_.outputs.push_back(std::move(output)); }
  /// Requests all outputs if none was requested.
  /// Params: binary – see RequestedOutput
  void complete_outputs(bool binary);

 private:
  bool is_set(size_t index) const;
  void check_shape(const std::string& what, const std::vector<int64_t>& shape, const TensorSpec& spec);

  const ModelSignature& model_;
  InferRequest request_{};
  int64_t rows_ = 0;
};

/// Returns the text "input "NAME"" for error messages.
std::string input_text(const TensorSpec& spec);

/// Checks that data of `size` bytes is as large as a tensor of `count` elements.
void check_data_size(const std::string& what, std::span<const int64_t> shape, int64_t count, c10::ScalarType dtype,
                     uint64_t size, const char* size_name);

/// Checks that each byte of a boolean is 0 or 1, because other values are undefined in C++.
void check_booleans(const std::string& what, const at::Tensor& tensor);

/// Reads an input from a part of a shared memory region into a new tensor. The sizes must have been checked.
at::Tensor read_shared_input(const std::string& what, const std::vector<int64_t>& shape, c10::ScalarType dtype,
                             const RegionPart& part);

/// Checks the parameter `classification`, and sets it.
void set_classes(RequestedOutput& output, const std::string& what, uint64_t classes);

}  // namespace bellows::serve
