#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "bellows/optim/optimizers.h"

// What a step that fails leaves behind.
namespace bellows::optim {

/// Unless it is dropped, or the kernels have begun: takes back the counts of the step that failed and the state it made.
class LibtorchOptimizer::Undo {
 public:
  explicit Undo(LibtorchOptimizer& optimizer) : optimizer_(optimizer), rounding_count_(optimizer.rounding_count_) {
    size_t parameters = 0;
    for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups_) parameters += group.params().size();
    counts_.reserve(parameters);
    for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups_) {
      for (const at::Tensor& p : group.params()) add(p.unsafeGetTensorImpl());
    }
  }
  ~Undo() {
    if (dropped_ || optimizer_.incomplete_) return;
    optimizer_.rounding_count_ = rounding_count_;
    for (const auto& [key, count] : counts_) {
      const auto found = optimizer_.state_.find(key);
      if (found == optimizer_.state_.end()) continue;
      if (!count)
        optimizer_.state_.erase(found);
      else if (int64_t* const steps = optimizer_.step_count(*found->second))
        *steps = *count;
    }
  }
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  void drop() { dropped_ = true; }

 private:
  void add(void* key) {
    const auto found = optimizer_.state_.find(key);
    std::optional<int64_t> count;  // none: there is no state yet
    if (found != optimizer_.state_.end()) {
      const int64_t* const steps = optimizer_.step_count(*found->second);
      count = steps ? *steps : 0;
    }
    counts_.emplace_back(key, count);
  }

  LibtorchOptimizer& optimizer_;
  std::vector<std::pair<void*, std::optional<int64_t>>> counts_;
  int64_t rounding_count_;
  bool dropped_ = false;
};

/// While it lives, the groups hold what a step that knows neither `maximize` nor master weights has to work on: master
/// copies in place of parameters, negated gradients. The state goes with them.
class LibtorchOptimizer::Working {
 public:
  explicit Working(LibtorchOptimizer& optimizer) : optimizer_(optimizer) {
    size_t parameters = 0;
    for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) parameters += group.params().size();
    substituted_.reserve(parameters);
    try {
      for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
        for (at::Tensor& p : group.params()) {
          if (p.grad().defined()) substitute(p);
        }
      }
    } catch (...) {
      restore();
      throw;
    }
  }
  ~Working() { restore(); }
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;
  void write_back() const {
    for (const auto& [slot, original] : substituted_) {
      if (slot->scalar_type() != original.scalar_type()) original.copy_(*slot);
    }
  }

 private:
  void substitute(at::Tensor& p) {
    const at::Tensor master = optimizer_.master_of(p);
    const bool maximize = optimizer_.common_.maximize;
    if (!master.defined() && !maximize) return;
    at::Tensor work = master.defined() ? master : p.detach();
    const at::Tensor grad = p.grad().to(work.scalar_type());
    work.mutable_grad() = maximize ? grad.neg() : grad;
    move_state(p, work);
    substituted_.emplace_back(&p, p);
    p = work;
  }
  void move_state(const at::Tensor& from, const at::Tensor& to) {
    auto& state = optimizer_.state();
    if (state.find(from.unsafeGetTensorImpl()) == state.end()) return;
    auto& slot = state[to.unsafeGetTensorImpl()];  // may throw, and may move the other entries
    const auto found = state.find(from.unsafeGetTensorImpl());
    slot = std::move(found->second);
    state.erase(found);
  }
  void restore() noexcept {
    for (auto& [slot, original] : substituted_) {
      try {
        move_state(*slot, original);
      } catch (...) {
        optimizer_.incomplete_ = true;
      }
      slot->mutable_grad().reset();
      *slot = original;
    }
  }

  LibtorchOptimizer& optimizer_;
  std::vector<std::pair<at::Tensor*, at::Tensor>> substituted_;
};

}  // namespace bellows::optim
