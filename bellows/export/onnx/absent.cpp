// The exporter in builds without the library of ONNX.
#include <c10/util/Exception.h>

#include "bellows/export/onnx.h"

namespace bellows {

namespace {

[[noreturn]] void refuse() {
  TORCH_CHECK(false,
              "export_onnx: this build of Bellows cannot write ONNX files. Install the packages libonnx-dev and "
              "libprotobuf-dev, and build Bellows again with -DBELLOWS_ONNX=ON.");
}

}  // namespace

OnnxReport export_onnx(const Model&, const std::vector<at::Tensor>&, const std::string&, const OnnxOptions&) {
  refuse();
}

OnnxReport export_onnx(const OnnxFunction&, const std::vector<at::Tensor>&, const std::string&, const OnnxOptions&) {
  refuse();
}

std::vector<OnnxMapping> onnx_mappings() {
  return {};
}

bool onnx_available() {
  return false;
}

}  // namespace bellows
