#pragma once

#include <string>

namespace bellows::runtime {

/// Kinds of model files.
enum class FileKind {
  missing,
  unknown,
  torchscript,
  torch_weights,
  aotinductor,
  exported_program,
  program,
  onnx,
  openvino
};

/// Detects the kind of a file from its first bytes and, for zip archives, from the names in its directory. The suffix of
/// the name decides if a zip archive is truncated, and for ONNX and OpenVINO, whose files start with no fixed bytes.
FileKind file_kind(const std::string& path);

/// Returns a description for error messages, such as "an ONNX model".
std::string describe(FileKind kind);

/// Checks the kind of a file before a back end loads it.
/// Throws: c10::ValueError if the file is missing, or if its kind differs. The message names the back ends for its kind
void check_kind(const std::string& path, const std::string& backend, bool accepted);

}  // namespace bellows::runtime
