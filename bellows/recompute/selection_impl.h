#pragma once

#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "bellows/recompute/budget_plan_impl.h"
#include "bellows/recompute/checkpoint.h"
#include "bellows/recompute/forward_state_impl.h"
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

/// One call of an operator in the first run of a region, with its outputs if they are kept.
struct KeptCall {
  const c10::FunctionSchema* schema = nullptr;
  CheckpointPolicy policy = CheckpointPolicy::prefer_recompute;
  bool kept = false;
  bool counted = false;  ///< by the budget
  Candidate cost;
  std::vector<at::Tensor> outputs;
  std::vector<uint32_t> versions;  ///< of the outputs: one that is modified in place later cannot be given again
  std::vector<torch::autograd::SavedVariable> elsewhere;
  RandomStates random_after;  ///< of an operator that draws random numbers

  /// An output was modified in place since: it has to be computed, and perhaps modified, again.
  bool modified() const;
};

/// What a region keeps of its operators' outputs. The second run calls the same operators in the same order, and is
/// given what was kept.
class Selection {
 public:
  /// Params: plan – of a budget guard, or null
  Selection(const CheckpointOptions& options, std::shared_ptr<BudgetPlan> plan);
  ~Selection();
  Selection(const Selection&) = delete;
  Selection& operator=(const Selection&) = delete;

  /// The first run is over: decides what to keep.
  /// Params: activation_bytes – what the region would hold without checkpoint()
  ///         counts – it is no part of the second run of a region around it
  void finish(int64_t activation_bytes, bool counts);
  void second_run_begins() const;

  std::shared_ptr<tap::OpTap> first_run();
  std::shared_ptr<tap::OpTap> second_run() const;

 private:
  class FirstRunTap;
  class SecondRunTap;
  void note(const tap::OpCall& op, tap::Stack& stack);
  void decide(KeptCall& call, const tap::OpCall& op, const std::vector<at::Tensor>& outputs);
  bool budgeted() const { return fraction_ || plan_; }

  const CheckpointRule rule_;
  const std::optional<double> fraction_;
  const bool with_random_;
  const std::shared_ptr<BudgetPlan> plan_;
  std::mutex mutex_;
  std::vector<KeptCall> calls_;
  int64_t planned_bytes_ = 0;
};

}  // namespace bellows::recompute::detail
