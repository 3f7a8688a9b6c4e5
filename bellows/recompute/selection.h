#pragma once

#include <torch/csrc/autograd/saved_variable.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/recompute/activation_checkpoint.h"
#include "bellows/recompute/budget_plan.h"
#include "bellows/recompute/forward_state.h"
#include "bellows/tap/op_tap.h"

namespace bellows::recompute::detail {

/// While this object exists, regions ignore the operators and the saved tensors of this thread. Guards around the
/// regions still receive both.
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

/// Returns whether `tensor` is a stand-in without memory for a tensor that a second run did not compute.
bool has_no_memory(const at::Tensor& tensor);

/// One output of a call in the first run: either the tensor itself or only its metadata.
struct KeptOutput {
  at::Tensor tensor;
  uint32_t version = 0;  ///< version that can be provided; later in-place writes prevent this
  /// Number of in-place writes by the region up to that version. The second run skips these writes.
  uint32_t writes = 0;
  /// A tensor with the same sizes, strides and dtype, but without memory. Access to its data throws.
  at::Tensor outlines;

  void keep_outlines();
  /// Keeps the output in its final state, after `times` in-place writes by the region.
  void keep_final(uint32_t times) { writes = times, version += times; }
  bool modified() const { return tensor.defined() && static_cast<uint32_t>(tensor._version()) != version; }
  /// Returns the output for the second run, with its values if they are kept. It is a separate tensor object, because
  /// autograd attaches metadata to it.
  at::Tensor given() const;
};

/// One output of a call that the surrounding guards store.
struct StoredOutput {
  explicit StoredOutput(const at::Tensor& output);
  bool modified() const { return counter.enabled() && counter.current_version() != version; }

  torch::autograd::SavedVariable value;
  c10::VariableVersion counter;
  uint32_t version = 0;  ///< version that was stored
};

/// One operator call in the first run of a region. Views are not recorded, because second runs always call them.
struct KeptCall {
  const c10::FunctionSchema* schema = nullptr;
  Action action = Action::run;
  CheckpointPolicy policy = CheckpointPolicy::prefer_recompute;
  std::vector<KeptOutput> outputs;
  /// If the surrounding guards keep the outputs, they are stored here and not in `outputs`.
  std::vector<StoredOutput> elsewhere;
  /// The generator states after this call, if the call draws random numbers and the second run omits it.
  RandomStates random_after;

  bool modified() const;
};

/// The operator outputs that a region keeps. The second run calls the same operators in the same order. It uses the
/// kept outputs, and skips calls whose results backward does not need.
class Selection {
 public:
  /// Params: plan – the plan of a budget guard, or null
  ///         counts – whether the budget guard counts this region; false inside the second run of a surrounding region
  ///         held – inputs that the region keeps unchanged
  Selection(const CheckpointOptions& options, std::shared_ptr<BudgetPlan> plan, bool counts,
            const std::vector<at::Tensor>& held);
  ~Selection();
  Selection(const Selection&) = delete;
  Selection& operator=(const Selection&) = delete;

  /// Call this function for each tensor that autograd saves for backward.
  void saved(const at::Tensor& tensor);
  /// Ends the first run and decides which outputs to keep.
  /// Params: activation_bytes – bytes that the region would need without checkpointing
  void finish(int64_t activation_bytes);
  void second_run_begins() const;
  /// Returns whether the second run skips calls. If such a run fails, call never_skip() and repeat the run.
  bool skips() const { return skips_; }
  void never_skip();
  /// Throws: c10::Error if a kept output was modified after it was provided to a second run
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
  std::shared_ptr<const RegionPlan> decided(int64_t activation_bytes) BELLOWS_REQUIRES(mutex_);
  void apply(const std::vector<Step>& steps) BELLOWS_REQUIRES(mutex_);
  void keep_nothing() BELLOWS_REQUIRES(mutex_);
  void give_whole_calls_only() BELLOWS_REQUIRES(mutex_);
  void hand_to_guards_around() BELLOWS_REQUIRES(mutex_);
  /// Excluded from the thread-safety analysis: after finish(), only never_skip() changes the calls, between two second
  /// runs.
  const std::vector<KeptCall>& finished_calls() const BELLOWS_NO_THREAD_SAFETY_ANALYSIS { return calls_; }
  bool budgeted() const { return fraction_ || plan_; }

  const CheckpointRule rule_;
  const std::optional<double> fraction_;
  const bool with_random_, checks_values_;
  const std::shared_ptr<BudgetPlan> plan_;
  const bool counts_;
  size_t number_ = 0;                              ///< number of the region within the step
  std::shared_ptr<const RegionPlan> region_plan_;  ///< the plan that the region follows, or null while it records
  std::shared_ptr<RegionTrace> trace_ BELLOWS_GUARDED_BY(mutex_);
  mutable Mutex mutex_;
  std::vector<KeptCall> calls_ BELLOWS_GUARDED_BY(mutex_);
  int64_t planned_bytes_ BELLOWS_GUARDED_BY(mutex_) = 0;
  bool other_calls_ BELLOWS_GUARDED_BY(mutex_) = false;
  bool skips_ = false;  ///< not guarded, because the region holds its lock when it calls functions that use it
};

}  // namespace bellows::recompute::detail
