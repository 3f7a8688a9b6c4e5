#include "bellows/runtime/onnx_checker.h"

#include <memory>

namespace bellows::runtime {

std::optional<OnnxChecker> onnx_checker(const LoadOptions& options) {
  for (const char* name : {"onnxruntime", "openvino"}) {
    const InferenceBackend& library = backend(name);
    if (!library.missing().empty()) continue;
    return OnnxChecker{.name = std::string(name) + " " + library.version(),
                       .load = [&library, options](const std::string& path) -> OnnxFunction {
                         const std::shared_ptr<InferenceModel> model = library.load(path, options);
                         return [model](const std::vector<at::Tensor>& inputs) { return model->run(inputs); };
                       }};
  }
  return {};
}

}  // namespace bellows::runtime
