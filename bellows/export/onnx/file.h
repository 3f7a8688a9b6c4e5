#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/export/onnx/graph.h"

namespace bellows::onnx_export {

/// How a graph is written.
struct FileOptions {
  int64_t opset = 17;
  std::string producer_version{};
  std::vector<std::pair<std::string, std::string>> metadata{};  ///< of the model, by key
  /// Initializers are written to `PATH.data` if they have more bytes than this together.
  uint64_t external_data_above = uint64_t{1} << 31;
  uint64_t smallest_external = 1024;  ///< smaller initializers stay in the file
};

struct WrittenFile {
  uint64_t bytes = 0;       ///< of the file
  uint64_t data_bytes = 0;  ///< of the file with external data; 0 if there is none
  std::string data_file{};  ///< its path
};

/// Writes a graph as an ONNX model, and checks it with the checker and the shape inference of ONNX. Files appear under
/// their names only when they are complete and valid.
/// Throws: c10::Error if a file cannot be written; c10::ValueError if the checker rejects the model, which means that
///         an operator was mapped incorrectly
WrittenFile write_onnx(const Graph& graph, const std::string& path, const FileOptions& options);

/// Returns the largest opset version that the installed library of ONNX can check.
int64_t newest_opset();

}  // namespace bellows::onnx_export
