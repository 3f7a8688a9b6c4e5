#include <torch/version.h>

#include <optional>

#include "bellows/amp/autocast.h"
#include "bellows/runtime/backends.h"
#include "bellows/runtime/script.h"

namespace bellows::runtime {

std::unique_ptr<InferenceBackend> make_libtorch_backend() {
  return make_script_backend("libtorch", TORCH_VERSION,
                             [](const Model& model, const LoadOptions& options) -> ScriptForward {
                               return [model, dtype = options.autocast](const std::vector<at::Tensor>& inputs) {
                                 std::optional<amp::AutocastGuard> lower;
                                 if (dtype) lower.emplace(c10::kCPU, *dtype);
                                 return model.forward_all(inputs);
                               };
                             });
}

}  // namespace bellows::runtime
