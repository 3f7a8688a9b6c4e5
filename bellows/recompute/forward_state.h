#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "bellows/recompute/budget_plan.h"
#include "bellows/tap/weight_casts.h"

namespace bellows::recompute::detail {

/// Autocast as it is on one thread.
struct AutocastState {
  struct Device {
    c10::DeviceType type = c10::kCPU;
    bool enabled = false;
    c10::ScalarType dtype = c10::ScalarType::BFloat16;
  };
  static AutocastState capture();
  std::array<Device, 2> devices;
  bool cache = true, weight_casts = false;
};

/// Puts a captured state in place while it lives. Casts that are cached meanwhile are dropped at its end, unless a guard
/// of autocast lives on this thread.
class AutocastScope {
 public:
  explicit AutocastScope(const AutocastState& state);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  AutocastState outer_;
  bool other_casts_;
  tap::WeightCastGuard weight_casts_;
};

/// States of libtorch's default generators, of the CPU and of some devices.
using RandomStates = std::vector<std::pair<c10::Device, at::Tensor>>;
RandomStates random_states(const std::vector<c10::Device>& devices);
void set_random_states(const RandomStates& states);

/// Where the CPU's default generator stands in its sequence: equal only if the same numbers were drawn.
uint64_t random_position();

/// What a function saw when it ran, besides its inputs.
class ForwardState {
 public:
  ForwardState(const std::vector<at::Tensor>& inputs, bool with_random);
  /// The function has run: if it drew no random numbers, their state need not be kept.
  void finish();
  /// It drew random numbers, and will draw the same.
  bool random() const { return !random_.empty(); }

 private:
  friend class ForwardStateScope;
  AutocastState autocast_;
  std::shared_ptr<BudgetFrame> budget_;
  RandomStates random_;
};

/// The same state again while it lives; generators then go on where they were.
class ForwardStateScope {
 public:
  explicit ForwardStateScope(const ForwardState& state);
  ~ForwardStateScope();
  ForwardStateScope(const ForwardStateScope&) = delete;
  ForwardStateScope& operator=(const ForwardStateScope&) = delete;

 private:
  RandomStates outer_random_;
  std::shared_ptr<BudgetFrame> outer_budget_;
  AutocastScope autocast_;
};

}  // namespace bellows::recompute::detail
