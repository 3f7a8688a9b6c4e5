#include "bellows/parallel/hooks/hook_state.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <charconv>

#include "bellows/comm/collectives.h"

namespace bellows::parallel {

bool nothing_to_exchange(const GradientBucket& bucket, const comm::Group& group) {
  return group.size() == 1 || bucket.flat.numel() == 0;
}

at::Tensor exact_mean(const at::Tensor& flat, const comm::Group& group) {
  // Divided first, because the sum of fp16 values may overflow although the mean does not.
  return comm::all_reduce(flat.div_(group.size()), group);
}

int64_t ParameterNumbers::of(const at::Tensor& parameter) {
  return numbers_.try_emplace(parameter.unsafeGetTensorImpl(), static_cast<int64_t>(numbers_.size())).first->second;
}

void ParameterNumbers::see(const GradientBucket& bucket) {
  for (const at::Tensor& parameter : bucket.parameters) of(parameter);
}

at::Tensor ParameterMemory::get(int64_t number, int64_t numel, const at::TensorOptions& options) const {
  const auto found = rows_.find(number);
  if (found == rows_.end()) return at::zeros({numel}, options);
  TORCH_CHECK_VALUE(found->second.numel() == numel, "gradient hook: expected \"", name_, ".", number, "\" to have ",
                    numel, " elements, but the restored state has ", found->second.numel(),
                    ". Resume with the model and the bucket size of the run that saved it.");
  return found->second.to(options);
}

void ParameterMemory::append_to(NamedTensors& state) const {
  for (const auto& [number, row] : rows_) state.emplace_back(name_ + "." + std::to_string(number), row);
}

bool ParameterMemory::take(const std::string& name, const at::Tensor& row) {
  if (!name.starts_with(name_ + ".")) return false;
  int64_t number = -1;
  const char *first = name.data() + name_.size() + 1, *last = name.data() + name.size();
  const auto [end, error] = std::from_chars(first, last, number);
  if (error != std::errc() || end != last || number < 0) return false;
  TORCH_CHECK_VALUE(row.defined() && row.dim() == 1 && row.is_floating_point(), "gradient hook: expected \"", name,
                    "\" to be a row of floating-point numbers.");
  rows_[number] = row.clone();
  return true;
}

at::Tensor ErrorFeedback::added_to(const at::Tensor& values, const GradientBucket& bucket) {
  before_.reset();
  numbers_.see(bucket);
  if (!on_ || memory_.empty()) return values;
  std::vector<at::Tensor> rows;
  rows.reserve(bucket.gradients.size());
  for (size_t i = 0; i < bucket.gradients.size(); ++i) {
    rows.push_back(memory_.get(numbers_.of(bucket.parameters[i]), bucket.gradients[i].numel(), values.options()));
  }
  before_ = at::cat(rows);
  return values + before_;
}

void ErrorFeedback::keep(const at::Tensor& errors, const at::Tensor& mean, const GradientBucket& bucket) {
  if (!on_) return;
  // Computed on the device, so that the host does not wait.
  const at::Tensor kept =
      at::where(at::isfinite(mean).all(), errors, before_.defined() ? before_ : at::zeros_like(errors));
  int64_t begin = 0;
  for (size_t i = 0; i < bucket.gradients.size(); ++i) {
    const int64_t numel = bucket.gradients[i].numel();
    memory_.set(numbers_.of(bucket.parameters[i]), kept.narrow(0, begin, numel));
    begin += numel;
  }
  before_.reset();
}

NamedTensors ErrorFeedback::state() const {
  NamedTensors state;
  memory_.append_to(state);
  return state;
}

void ErrorFeedback::restore(const NamedTensors& state, const GradientHook& hook) {
  ParameterMemory restored("error");
  for (const auto& [name, row] : state) {
    TORCH_CHECK_VALUE(on_ && restored.take(name, row), "gradient hook ", hook.describe(), ": got \"", name,
                      "\", which is not a part of its state. The state belongs to another hook.");
  }
  memory_ = std::move(restored);
}

}  // namespace bellows::parallel
