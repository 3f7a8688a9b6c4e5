#include "bellows/runtime/call.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

namespace bellows::runtime {

namespace {

std::string sizes_text(const std::vector<int64_t>& sizes) {
  std::string text = "[";
  for (const int64_t size : sizes) {
    if (text.size() > 1) text += ", ";
    text += size < 0 ? "any" : std::to_string(size);
  }
  return text + "]";
}

bool fits(at::IntArrayRef actual, const std::vector<int64_t>& expected) {
  if (actual.size() != expected.size()) return false;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] >= 0 && actual[i] != expected[i]) return false;
  }
  return true;
}

}  // namespace

void check_inputs(const std::string& model, std::span<const TensorInfo> expected, std::span<const at::Tensor> inputs) {
  TORCH_CHECK_VALUE(inputs.size() == expected.size(), model, ": expected ", expected.size(),
                    expected.size() == 1 ? " input" : " inputs", ", got ", inputs.size(), ".");
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& given = inputs[i];
    const TensorInfo& info = expected[i];
    TORCH_CHECK_VALUE(given.defined() && given.device().is_cpu() && given.layout() == at::kStrided, model, ": input \"",
                      info.name, "\": expected a dense tensor on the CPU, got ",
                      given.defined() ? c10::str("a tensor on ", given.device(), " with layout ", given.layout())
                                      : "an undefined tensor",
                      ".");
    if (info.dtype == c10::ScalarType::Undefined) continue;
    TORCH_CHECK_VALUE(given.scalar_type() == info.dtype, model, ": input \"", info.name, "\": expected dtype ",
                      info.dtype, ", got ", given.scalar_type(), ". Convert it with tensor.to().");
    TORCH_CHECK_VALUE(fits(given.sizes(), info.sizes), model, ": input \"", info.name, "\": expected sizes ",
                      sizes_text(info.sizes), ", got ", given.sizes(), ".");
  }
}

void check_options(const std::string& backend, const LoadOptions& options, bool autocast, bool providers) {
  TORCH_CHECK_VALUE(options.threads >= 0, "`threads` must be at least 0, got ", options.threads, ".");
  TORCH_CHECK_VALUE(providers || options.providers.empty(), backend,
                    ": `providers` is only for the back ends onnxruntime and openvino.");
  if (!options.autocast) return;
  TORCH_CHECK_VALUE(*options.autocast == at::kBFloat16 || *options.autocast == at::kHalf,
                    "`autocast` must be BFloat16 or Half, got ", *options.autocast, ".");
  TORCH_CHECK_VALUE(
      autocast, backend,
      " computes in the dtypes of the file, so `autocast` has no effect. Export the model in this dtype.");
}

int64_t thread_count(const LoadOptions& options) {
  return options.threads > 0 ? options.threads : at::get_num_threads();
}

ThreadGuard::ThreadGuard(int64_t threads) : before_(at::get_num_threads()), changed_(threads != before_) {
  if (changed_) at::set_num_threads(static_cast<int>(threads));
}

ThreadGuard::~ThreadGuard() {
  if (changed_) at::set_num_threads(before_);
}

std::vector<at::Tensor> ordinary_tensors(const std::vector<at::Tensor>& tensors) {
  const c10::InferenceMode off(false);
  std::vector<at::Tensor> result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_inference()) {
      result.push_back(tensor);
      continue;
    }
    at::Tensor same = at::empty({0}, tensor.options());
    same.unsafeGetTensorImpl()->set_storage_keep_dtype(tensor.storage());
    same.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    result.push_back(std::move(same));
  }
  return result;
}

}  // namespace bellows::runtime
