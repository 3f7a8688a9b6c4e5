#pragma once

#include <optional>

#include "bellows/export/onnx.h"
#include "bellows/runtime/backend.h"

namespace bellows::runtime {

/// Returns ONNX Runtime, or else OpenVINO, for OnnxOptions::checker. Returns nothing if neither library is found.
std::optional<OnnxChecker> onnx_checker(const LoadOptions& options = {});

}  // namespace bellows::runtime
