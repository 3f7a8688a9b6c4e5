#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "bellows/core/error.h"
#include "bellows/kernels/cuda/optimizers.h"
#include "bellows/optim/fused/bucket_impl.h"
#include "bellows/tap/deferral.h"

namespace bellows::optim {

namespace {

using kernels::StepTypes;

/// Gives the kernels tensors of one dense layout: copies of those that are not, written back afterwards.
class DenseCopies {
 public:
  void make_dense(at::Tensor& tensor) {
    if (tensor.is_non_overlapping_and_dense()) return;
    replace(tensor, tensor.clone());
  }
  void make_like(at::Tensor& tensor, const at::Tensor& dense, at::ScalarType type) {
    if (!tensor.defined() || (tensor.scalar_type() == type && same_layout(tensor, dense))) return;
    replace(tensor, at::empty_like(dense, dense.options().dtype(type)).copy_(tensor));
  }
  void make_grad_like(at::Tensor& grad, const at::Tensor& dense, at::ScalarType type) {
    if (grad.scalar_type() == type && same_layout(grad, dense)) return;
    grad = at::empty_like(dense, dense.options().dtype(type)).copy_(grad);
  }
  void write_back() {
    for (auto& [original, copy] : copies_) original.copy_(copy);
  }

 private:
  void replace(at::Tensor& tensor, at::Tensor copy) {
    copies_.emplace_back(tensor, copy);
    tensor = std::move(copy);
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

/// float64 does not mix: beside a float64 parameter all is float64, beside others nothing is.
at::ScalarType mixable(at::ScalarType type, at::ScalarType parameter) {
  if (parameter == at::kDouble) return at::kDouble;
  return is_fusable(type) && type != at::kDouble ? type : at::kFloat;
}

/// Codes cannot be rearranged: their blocks follow the memory.
template <class Rule>
void check_low_bit_layout(const FusedTensor<Rule>& t) {
  const bool same = t.low_bit == kernels::LowBit::int4 ? t.param.is_contiguous() : same_layout(t.state[0], t.param);
  TORCH_CHECK_VALUE(same, "step: low-bit state of a parameter of shape ", t.param.sizes(),
                    " was made for another memory ", "layout than the strides ", t.param.strides(),
                    " that it has now. Bring the model into its layout ", "before the first step (int4: row-major).");
}

template <class Rule>
void make_dense(FusedTensor<Rule>& t, DenseCopies& copies) {
  copies.make_dense(t.param);
  const at::ScalarType parameter = t.param.scalar_type();
  copies.make_grad_like(t.grad, t.param, mixable(t.grad.scalar_type(), parameter));
  copies.make_like(t.master, t.param, at::kFloat);
  if (t.low_bit != kernels::LowBit::none) return check_low_bit_layout(t);
  at::ScalarType type = parameter;
  if (t.state[0].defined()) type = mixable(t.state[0].scalar_type(), parameter);
  for (at::Tensor& state : t.state) copies.make_like(state, t.param, type);
}

template <class Rule>
std::vector<Bucket<Rule>> sort_into_buckets(std::vector<FusedTensor<Rule>>& tensors) {
  std::vector<Bucket<Rule>> buckets;
  for (FusedTensor<Rule>& t : tensors) {
    const StepTypes types = types_of(t);
    auto place = std::find_if(buckets.begin(), buckets.end(), [&](const auto& b) { return b.fits(t, types); });
    if (place == buckets.end()) place = buckets.insert(place, {t.param.device(), types, {}});
    place->tensors.push_back(std::move(t));
  }
  return buckets;
}

// --- CUDA: libtorch's fused kernels where it has them, ours elsewhere

template <class Rule>
struct Lists {
  TensorList params, grads, state[3], steps;
  explicit Lists(const Bucket<Rule>& bucket) {
    for (const FusedTensor<Rule>& t : bucket.tensors) {
      params.push_back(t.param);
      grads.push_back(t.grad);
      for (size_t k = 0; k < 3; ++k) {
        if (t.state[k].defined()) state[k].push_back(t.state[k]);
      }
      if (t.step.defined()) steps.push_back(t.step);
    }
  }
};

/// Scalars of a step on the device of a bucket.
struct OnDevice {
  std::optional<at::Tensor> grad_scale, found_inf;
  at::Tensor lr;
  OnDevice(const FusedStep& step, c10::Device device) {
    if (step.grad_scale.defined()) grad_scale = step.grad_scale.to(device, at::kFloat);
    if (step.found_inf.defined()) found_inf = step.found_inf.to(device, at::kFloat);
    if (step.lr.defined()) lr = step.lr.to(device, at::kFloat);
  }
};

template <class Rule>
bool run_aten(const Bucket<Rule>&, const FusedStep&, const OnDevice&) {
  return false;
}

bool run_aten(const Bucket<SgdRule>& bucket, const FusedStep& step, const OnDevice& on) {
  Lists<SgdRule> l(bucket);
  const SgdRule& r = bucket.tensors[0].rule;
  const auto run = [&](const auto& lr) {
    at::_fused_sgd_(l.params, l.grads, l.state[0], r.weight_decay, r.momentum, lr, r.dampening, r.nesterov,
                    step.maximize, r.first, on.grad_scale, on.found_inf);
  };
  on.lr.defined() ? run(on.lr) : run(r.lr);
  return true;
}

bool run_aten(const Bucket<AdamRule>& bucket, const FusedStep& step, const OnDevice& on) {
  Lists<AdamRule> l(bucket);
  const AdamRule& r = bucket.tensors[0].rule;
  const auto run = [&](const auto& lr) {
    const auto kernel = [&](auto function) {
      function(l.params, l.grads, l.state[0], l.state[1], l.state[2], l.steps, lr, r.beta1, r.beta2, r.weight_decay,
               r.eps, r.amsgrad, step.maximize, on.grad_scale, on.found_inf);
    };
    if (r.decoupled) {
      kernel([](auto&&... a) { at::_fused_adamw_(a...); });
    } else {
      kernel([](auto&&... a) { at::_fused_adam_(a...); });
    }
  };
  on.lr.defined() ? run(on.lr) : run(r.lr);
  return true;
}

template <class Rule>
void run_on_device(Bucket<Rule>& bucket, const FusedStep& step) {
  const c10::DeviceGuard guard(bucket.device);
  const OnDevice on(step, bucket.device);
  TensorList steps = Lists<Rule>(bucket).steps;
  if (!steps.empty()) at::_foreach_add_(steps, 1);
  const StepTypes& types = bucket.types;
  const bool aten = types.param == types.grad && types.param == types.state && types.low_bit == kernels::LowBit::none &&
                    !types.stochastic && !bucket.tensors[0].master.defined();
  if (!aten || !run_aten(bucket, step, on)) {
    const auto pointer = [](const at::Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; };
    const c10::impl::VirtualGuardImpl backend(bucket.device.type());
    tap::sync();
    kernels::cuda::step(
        addresses(bucket), types,
        {pointer(on.lr), pointer(on.grad_scale.value_or(at::Tensor())), pointer(on.found_inf.value_or(at::Tensor()))},
        backend.getStream(bucket.device).native_handle());
  }
  if (!steps.empty() && on.found_inf) at::_foreach_sub_(steps, TensorList(steps.size(), *on.found_inf));
}

/// What writes through addresses has to tell autograd, and whatever else goes by versions, as an operator would.
template <class Rule>
void bump_versions(const FusedTensor<Rule>& t) {
  t.param.unsafeGetTensorImpl()->bump_version();
  if (t.master.defined()) t.master.unsafeGetTensorImpl()->bump_version();
  for (const at::Tensor& state : t.state) {
    if (state.defined()) state.unsafeGetTensorImpl()->bump_version();
  }
  for (const at::Tensor& scale : t.scale) {
    if (scale.defined()) scale.unsafeGetTensorImpl()->bump_version();
  }
}

template <class Rule>
void run(std::vector<FusedTensor<Rule>>& tensors, const FusedStep& step) {
  DenseCopies copies;
  std::erase_if(tensors, [](const auto& t) { return t.param.numel() == 0; });
  for (FusedTensor<Rule>& t : tensors) {
    make_dense(t, copies);
    bump_versions(t);
    t.rule.grad_factor = t.param.is_cpu() ? step.grad_factor : (step.maximize ? -1 : 1);
  }
  std::vector<Bucket<Rule>> buckets = sort_into_buckets(tensors);
  if (step.begun) *step.begun = true;
  for (Bucket<Rule>& bucket : buckets) {
    if (bucket.device.is_cpu()) {
      step_on_cpu(bucket, step.late);
    } else {
      run_on_device(bucket, step);
    }
  }
  copies.write_back();
}

}  // namespace

bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) != 1 && a.stride(d) != b.stride(d)) return false;
  }
  return true;
}

bool is_fusable(at::ScalarType type) {
  return kernel_type(type).has_value();
}

void run_fused(std::vector<FusedTensor<SgdRule>> tensors, const FusedStep& step) {
  run(tensors, step);
}
void run_fused(std::vector<FusedTensor<AdamRule>> tensors, const FusedStep& step) {
  run(tensors, step);
}
void run_fused(std::vector<FusedTensor<RmspropRule>> tensors, const FusedStep& step) {
  run(tensors, step);
}
void run_fused(std::vector<FusedTensor<AdagradRule>> tensors, const FusedStep& step) {
  run(tensors, step);
}
void run_fused(std::vector<FusedTensor<LionRule>> tensors, const FusedStep& step) {
  run(tensors, step);
}

}  // namespace bellows::optim
