#include "bellows/runtime/backends.h"
#include "bellows/runtime/file_kind.h"

namespace bellows::runtime {

namespace {

/// Takes the place of TensorRT in builds without its headers.
class AbsentTensorRt final : public InferenceBackend {
 public:
  std::string name() const override { return "tensorrt"; }
  std::string missing() const override {
    return "This build of Bellows has no TensorRT. Install TensorRT and CUDA with their headers, and build Bellows "
           "with "
           "-DBELLOWS_TENSORRT=ON. Or use the execution provider tensorrt of ONNX Runtime.";
  }
  std::string version() const override { return ""; }
  bool accepts(const std::string& path) const override { return file_kind(path) == FileKind::onnx; }
  std::unique_ptr<InferenceModel> load(const std::string&, const LoadOptions&) const override {
    C10_THROW_ERROR(NotImplementedError, missing());
  }
};

}  // namespace

std::unique_ptr<InferenceBackend> make_tensorrt_backend() {
  return std::make_unique<AbsentTensorRt>();
}

}  // namespace bellows::runtime
