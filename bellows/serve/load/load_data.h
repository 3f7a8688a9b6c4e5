#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/serve/load/load.h"

namespace bellows::serve {

/// A tensor of a request. `bytes` are the values in row-major order; each element of BYTES has its length in four bytes in
/// front, as in the protocol's binary form.
struct LoadTensor {
  std::string name{}, datatype{};
  std::vector<int64_t> shape{};
  std::string bytes{};
};

/// A request: its tensors in the order of the model's inputs.
using LoadRequest = std::vector<LoadTensor>;

/// The metadata of a model, as GET /v2/models/NAME returns it.
struct LoadMetadata {
  struct Input {
    std::string name{}, datatype{};
    std::vector<int64_t> shape{};  ///< -1 for an axis that may vary
  };
  std::string version{};
  std::vector<Input> inputs{};
};

/// Throws: c10::ValueError if the text is not the metadata of a model
LoadMetadata parse_metadata(std::string_view json);

/// Creates the different requests of a measurement, which are sent in turns: those of the data file, or eight with random
/// values.
/// Throws: c10::ValueError if a shape is missing or contradicts the metadata, or if the file is malformed
std::vector<LoadRequest> make_requests(const LoadMetadata& metadata, const LoadOptions& options);

/// Returns the bytes of one element of a dtype of the protocol; 0 for BYTES.
/// Throws: c10::ValueError if the protocol has no such dtype
size_t element_bytes(std::string_view datatype);

/// The body of an inference request.
struct LoadBody {
  std::string text{};
  size_t header_bytes = 0;  ///< size of the JSON text before binary tensors; 0 if there are none
};
/// Throws: c10::ValueError if `json` is set and a dtype has no JSON form
LoadBody request_body(const LoadRequest& request, bool json);

}  // namespace bellows::serve
