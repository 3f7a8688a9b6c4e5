#include "bellows/compile/compile.h"
#include "bellows/core/version.h"
#include "bellows/runtime/backends.h"
#include "bellows/runtime/script.h"

namespace bellows::runtime {

namespace {

ScriptForward compiled(const Model& model, const LoadOptions& options) {
  const auto function =
      compile(ScriptForward([model](const std::vector<at::Tensor>& inputs) { return model.forward_all(inputs); }),
              {.frozen = model, .autocast = options.autocast});
  return [function](const std::vector<at::Tensor>& inputs) mutable {
    std::vector<at::Tensor> results = function(inputs);
    sync();  // the caller may read the results on another thread
    return results;
  };
}

}  // namespace

std::unique_ptr<InferenceBackend> make_compiled_backend() {
  return make_script_backend("compiled", BELLOWS_VERSION, compiled);
}

}  // namespace bellows::runtime
