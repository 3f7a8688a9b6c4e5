#pragma once

#include <torch/csrc/autograd/saved_variable.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "bellows/recompute/activation_checkpoint.h"
#include "bellows/recompute/budget_plan.h"
#include "bellows/recompute/forward_state.h"
#include "bellows/tap/op_tap.h"

namespace bellows::recompute::detail {

/// While it lives, regions ignore operators and saved tensors on this thread. Guards around the regions still receive
/// them.
class PastRegions {
 public:
  PastRegions() { ++depth(); }
  ~PastRegions() { --depth(); }
  PastRegions(const PastRegions&) = delete;
  PastRegions& operator=(const PastRegions&) = delete;
  static bool active() { return depth() > 0; }

 private:
  static int& depth();
};

/// True if `tensor` replaces one that a second run did not compute.
bool has_no_memory(const at::Tensor& tensor);

/// One output of a call in the first run: the tensor, or only its outlines.
struct KeptOutput {
  at::Tensor tensor;
  uint32_t version = 0;  ///< an output that was modified in place later cannot be provided
  uint32_t writes = 0;   ///< the region's own in-place writes up to that version; the second run skips them
  /// A tensor of the same sizes, strides and dtype without memory. Reading or writing its data throws.
  at::Tensor outlines;

  void keep_outlines();
  /// Keeps the output in its final state, after `times` in-place writes by the region.
  void keep_final(uint32_t times) { writes = times, version += times; }
  bool modified() const { return tensor.defined() && static_cast<uint32_t>(tensor._version()) != version; }
  /// Returns: the output for the second run, with its values if they are kept. It is a separate tensor, because
  ///          autograd attaches its metadata to it.
  at::Tensor given() const;
};

/// One operator call in the first run of a region. Views are not recorded, because they are always called.
struct KeptCall {
  const c10::FunctionSchema* schema = nullptr;
  Action action = Action::run;
  CheckpointPolicy policy = CheckpointPolicy::prefer_recompute;
  std::vector<KeptOutput> outputs;
  std::vector<torch::autograd::SavedVariable> elsewhere;  ///< instead of `outputs`: kept by the surrounding guards
  RandomStates random_after;  ///< generator states after a call that draws random numbers and is not repeated

  bool modified() const;
};

/// The operator outputs that a region keeps. The second run calls the same operators in the same order. It gets the
/// kept outputs and skips calls whose results backward does not need.
class Selection {
 public:
  /// Params: plan – the plan of a budget guard, or null
  ///         counts – false inside the second run of a surrounding region
  ///         held – inputs that the region keeps unchanged
  Selection(const CheckpointOptions& options, std::shared_ptr<BudgetPlan> plan, bool counts,
            const std::vector<at::Tensor>& held);
  ~Selection();
  Selection(const Selection&) = delete;
  Selection& operator=(const Selection&) = delete;

  /// Call it for each tensor that autograd saves for backward.
  void saved(const at::Tensor& tensor);
  /// Ends the first run and decides which outputs to keep.
  /// Params: activation_bytes – the memory that the region would need without checkpointing
  void finish(int64_t activation_bytes);
  void second_run_begins() const;
  /// True if the second run skips calls. If it then fails, it must be repeated after never_skip().
  bool skips() const { return skips_; }
  void never_skip();
  /// Throws: c10::Error if a kept output was modified since it was given to a second run
  void check_given() const;

  std::shared_ptr<tap::OpTap> first_run();
  std::shared_ptr<tap::OpTap> second_run() const;

 private:
  class FirstRunTap;
  class SecondRunTap;
  void follow(const tap::OpCall& op, OperatorKind kind, tap::Stack& stack);
  void record(const tap::OpCall& op, OperatorKind kind, tap::Stack& stack);
  CheckpointPolicy policy_of(const tap::OpCall& op, const std::vector<at::Tensor>& outputs) const;
  RandomStates random_states_after(OperatorKind kind, const at::Tensor& result) const;
  std::shared_ptr<const RegionPlan> decided(int64_t activation_bytes);
  void apply(const std::vector<Step>& steps);
  void keep_nothing();
  void give_whole_calls_only();
  void hand_to_guards_around();
  bool budgeted() const { return fraction_ || plan_; }

  const CheckpointRule rule_;
  const std::optional<double> fraction_;
  const bool with_random_, checks_values_;
  const std::shared_ptr<BudgetPlan> plan_;
  const bool counts_;
  size_t number_ = 0;                              ///< within the step of the guard
  std::shared_ptr<const RegionPlan> region_plan_;  ///< the plan that it follows, or null while it records
  std::shared_ptr<RegionTrace> trace_;
  mutable std::mutex mutex_;
  std::vector<KeptCall> calls_;
  int64_t planned_bytes_ = 0;
  bool other_calls_ = false, skips_ = false;
};

}  // namespace bellows::recompute::detail
