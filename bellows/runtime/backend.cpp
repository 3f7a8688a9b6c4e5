#include "bellows/runtime/backend.h"

#include "bellows/core/error.h"
#include "bellows/runtime/backends.h"
#include "bellows/system/thread.h"

namespace bellows::runtime {

std::future<std::vector<at::Tensor>> InferenceModel::run_async(std::vector<at::Tensor> inputs) {
  return start_async_or_run([this, inputs = std::move(inputs)] { return run(inputs); });
}

const std::vector<const InferenceBackend*>& backends() {
  // Never destroyed, because threads may still use them while the process ends.
  static const auto* const all = new std::vector<const InferenceBackend*>{
      make_libtorch_backend().release(),    make_compiled_backend().release(),    make_program_backend().release(),
      make_aotinductor_backend().release(), make_onnxruntime_backend().release(), make_openvino_backend().release(),
      make_tensorrt_backend().release()};
  return *all;
}

const InferenceBackend& backend(const std::string& name) {
  std::vector<std::string> names;
  std::string list;
  for (const InferenceBackend* one : backends()) {
    if (one->name() == name) return *one;
    names.push_back(one->name());
    list += (list.empty() ? "" : ", ") + one->name();
  }
  TORCH_CHECK_VALUE(false, "unknown back end \"", name, "\". Back ends: ", list, ".", did_you_mean(name, names));
}

}  // namespace bellows::runtime
