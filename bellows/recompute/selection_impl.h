#pragma once

#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "bellows/recompute/budget_plan.h"
#include "bellows/recompute/checkpoint.h"
#include "bellows/recompute/forward_state.h"
#include "bellows/tap/op_tap.h"

namespace bellows::recompute::detail {

/// While it lives, operators and saved tensors on this thread are none of a region's business: guards around the regions
/// get them.
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

/// It stands for a tensor that a second run has left out.
bool has_no_memory(const at::Tensor& tensor);

/// One output of a call of the first run: kept, or its outlines only.
struct KeptOutput {
  at::Tensor tensor;
  uint32_t version = 0;  ///< one that is modified in place later cannot be given again
  uint32_t writes = 0;   ///< of the region itself, up to that version: the second run leaves them out
  /// Of the same sizes, strides and dtype over memory that is not there: whoever reads or writes it gets an exception.
  at::Tensor outlines;

  void keep_outlines();
  /// As the region leaves it, after it was written so often.
  void keep_final(uint32_t times) { writes = times, version += times; }
  bool modified() const { return tensor.defined() && static_cast<uint32_t>(tensor._version()) != version; }
  /// For the second run, a tensor of its own, as autograd writes its marks on it: the values if they are kept.
  at::Tensor given() const;
};

/// One call of an operator in the first run of a region. Views are not noted: they are always called.
struct KeptCall {
  const c10::FunctionSchema* schema = nullptr;
  Action action = Action::run;
  CheckpointPolicy policy = CheckpointPolicy::prefer_recompute;
  std::vector<KeptOutput> outputs;
  std::vector<torch::autograd::SavedVariable> elsewhere;  ///< in place of the outputs: kept as the guards around keep
  RandomStates random_after;                              ///< of one that draws random numbers, and is not called again

  bool modified() const;
};

/// What a region keeps of its operators' outputs. The second run calls the same operators in the same order, is given
/// what was kept, and leaves out what nothing needs that backward needs.
class Selection {
 public:
  /// Params: plan – of a budget guard, or null
  ///         counts – it is no part of the second run of a region around it
  ///         held – inputs that the region keeps as they are
  Selection(const CheckpointOptions& options, std::shared_ptr<BudgetPlan> plan, bool counts,
            const std::vector<at::Tensor>& held);
  ~Selection();
  Selection(const Selection&) = delete;
  Selection& operator=(const Selection&) = delete;

  /// Autograd saved it for backward.
  void saved(const at::Tensor& tensor);
  /// The first run is over: decides what to keep.
  /// Params: activation_bytes – what the region would hold without checkpoint()
  void finish(int64_t activation_bytes);
  void second_run_begins() const;
  /// The second run leaves out calls. If that makes it fail, it has to be repeated without.
  bool skips() const { return skips_; }
  void never_skip();
  /// Throws: c10::Error – what a second run was given was modified since
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
  size_t number_ = 0;                              ///< in the step of the guard
  std::shared_ptr<const RegionPlan> region_plan_;  ///< that it follows, or null: it records
  std::shared_ptr<RegionTrace> trace_;
  mutable std::mutex mutex_;
  std::vector<KeptCall> calls_;
  int64_t planned_bytes_ = 0;
  bool other_calls_ = false, skips_ = false;
};

}  // namespace bellows::recompute::detail
