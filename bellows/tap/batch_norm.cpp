#include "bellows/tap/batch_norm.h"

#include <ATen/ops/batch_norm_native.h>
#include <torch/library.h>

#include <memory>
#include <unordered_map>
#include <utility>

#include "bellows/core/mutex.h"

namespace bellows::tap {

namespace {

/// Replacements by key tensor. A weak reference keeps other tensors from getting the same address.
class Replacements {
 public:
  void set(const at::Tensor& key, BatchNormFunction function) {
    const MutexLock lock(mutex_);
    std::erase_if(of_, [](const auto& item) { return item.second.key.expired(); });
    if (function) {
      of_.insert_or_assign(key.unsafeGetTensorImpl(), Entry{Weak(key.getIntrusivePtr()),
                                                            std::make_shared<BatchNormFunction>(std::move(function))});
    } else {
      of_.erase(key.unsafeGetTensorImpl());
    }
  }
  std::shared_ptr<const BatchNormFunction> find(const at::Tensor& key) const {
    if (!key.defined()) return nullptr;
    const SharedLock lock(mutex_);
    const auto found = of_.find(key.unsafeGetTensorImpl());
    return found == of_.end() ? nullptr : found->second.function;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    Weak key;
    std::shared_ptr<const BatchNormFunction> function;
  };
  mutable SharedMutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Entry> of_ BELLOWS_GUARDED_BY(mutex_);
};

Replacements& replacements() {
  static auto* const all = new Replacements;  // never destroyed: operators may run until the process ends
  return *all;
}

/// Replaces the kernel that the dispatcher derives from the composite operator for autograd's keys.
at::Tensor batch_norm_above_autograd(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                                     const std::optional<at::Tensor>& bias,
                                     const std::optional<at::Tensor>& running_mean,
                                     const std::optional<at::Tensor>& running_var, bool training, double momentum,
                                     double eps, bool cudnn_enabled) {
  const auto given = [](const std::optional<at::Tensor>& tensor) { return tensor.value_or(at::Tensor()); };
  const at::Tensor mean = given(running_mean);
  if (const auto function = training ? replacements().find(mean.defined() ? mean : given(weight)) : nullptr)
    return (*function)({input, given(weight), given(bias), mean, given(running_var), momentum, eps});
  return at::native::batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled);
}

void register_batch_norm_once() {
  [[gnu::used]] static const auto* const libraries = [] {
    auto* made = new std::vector<torch::Library>;
    made->reserve(2);
    for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
      made->emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
      made->back().impl("batch_norm", batch_norm_above_autograd);
    }
    return made;  // never undone
  }();
}

}  // namespace

void replace_batch_norm(const at::Tensor& key, BatchNormFunction function) {
  TORCH_CHECK_VALUE(key.defined(), "replace_batch_norm: expected the running mean or the weight of a layer, got an ",
                    "undefined tensor.");
  register_batch_norm_once();
  replacements().set(key, std::move(function));
}

}  // namespace bellows::tap
