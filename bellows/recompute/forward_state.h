#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "bellows/recompute/budget_plan.h"
#include "bellows/tap/weight_casts.h"

namespace bellows::recompute::detail {

/// The autocast state of one thread.
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

/// Applies a captured autocast state while this object exists. The destructor drops the casts that autocast cached in
/// the meantime, unless an autocast guard with the same dtypes exists on this thread.
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

/// The states of libtorch's default generators, for the CPU and for other devices.
using RandomStates = std::vector<std::pair<c10::Device, at::Tensor>>;
RandomStates random_states(const std::vector<c10::Device>& devices);
void set_random_states(const RandomStates& states);

/// Returns a number that identifies the position of the CPU's default generator in its sequence. If two runs get the
/// same number at the same point, they drew the same random numbers up to that point.
uint64_t random_position();

/// The state that a function depends on besides its inputs: autocast, budget guard and random number generators.
class ForwardState {
 public:
  ForwardState(const std::vector<at::Tensor>& inputs, bool with_random);
  /// Call this function when the checkpointed function has returned. It drops the generator states if no random numbers
  /// were drawn.
  void finish();
  /// Returns whether the function drew random numbers, which the second run must repeat.
  bool random() const { return !random_.empty(); }

 private:
  friend class ForwardStateScope;
  AutocastState autocast_;
  std::shared_ptr<BudgetFrame> budget_;
  RandomStates random_;
};

/// Applies a captured state while this object exists. Afterwards, the generators continue from their previous position.
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
