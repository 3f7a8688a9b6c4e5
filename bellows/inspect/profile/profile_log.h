#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "bellows/core/mutex.h"
#include "bellows/inspect/module_tracker.h"
#include "bellows/inspect/profile/profile.h"

namespace bellows::inspect {

/// Measures the time of the phases of a step and of waiting for other ranks. Private to the component.
class PhaseLog final : public tap::Observer {
 public:
  tap::ObserverNeeds needs() const override { return {.operators = false, .user_scopes = true, .times = true}; }
  void before(const tap::OpEvent& event) override;
  void after(const tap::OpEvent& event) override;
  /// Returns the phases of the step that has ended, in the order in which they began, and the time outside all scopes.
  /// Params: seconds – of the step
  std::vector<StepPhase> take(double seconds);

 private:
  StepPhase& open_phase() BELLOWS_REQUIRES(mutex_) { return depth_ == 0 ? outside_ : phases_[open_]; }

  Mutex mutex_;
  int depth_ BELLOWS_GUARDED_BY(mutex_) = 0;
  int waits_ BELLOWS_GUARDED_BY(mutex_) = 0;    ///< open scopes of waiting
  size_t open_ BELLOWS_GUARDED_BY(mutex_) = 0;  ///< the phase that has begun last
  std::vector<StepPhase> phases_ BELLOWS_GUARDED_BY(mutex_);
  StepPhase outside_ BELLOWS_GUARDED_BY(mutex_);
};

/// Records each operator of a step: its work, its time and properties that make it slow. Private to the component.
/// Threads: see tap::Observer
class ProfileLog final : public tap::Observer {
 public:
  explicit ProfileLog(ModuleMap map) : tracker_(std::move(map)) {}

  tap::ObserverNeeds needs() const override { return ModuleTracker::needs(/*times=*/true); }
  void before(const tap::OpEvent& event) override;
  void after(const tap::OpEvent& event) override;
  /// Call this function before each step.
  void begin_step();
  /// Adds the records to the profile. Counts are means of the steps. Times are medians, because other programs can
  /// interrupt an operator, unless the operator is not called in each step.
  void add_to(StepProfile& profile) const;

 private:
  struct Call;  ///< the call of an operator that ends
  /// An operator that has begun. Results do not exist then, and some records need them together with the arguments.
  struct Running {
    std::vector<c10::IValue> inputs{};
    double start_us = 0;
    double wait_us = 0;  ///< within the operator, such as for the parameters that ZeRO-3 gathers
  };
  using OpKey = std::tuple<const OpInfo*, std::string, bool, c10::ScalarType>;
  /// Operator, place, sizes and call site. The place gets its module only later, so several keys can have one module.
  using SlowKey = std::tuple<const OpInfo*, PlacePtr, std::string, std::string>;

  /// The records of one step.
  struct Records {
    std::map<OpKey, ProfiledOp> ops{};
    std::map<SlowKey, ReorderingCopy> copies{};
    std::map<SlowKey, OddSizes> odd_sizes{};  ///< without call sites
    ConvolutionUse convolutions{};
    Recomputation recomputation{};
  };
  Records& records() BELLOWS_REQUIRES(mutex_) { return steps_.back(); }

  void note_wait(const tap::OpEvent& event, double now_us) BELLOWS_REQUIRES(mutex_);
  void note(const Call& call) BELLOWS_REQUIRES(mutex_);
  void note_copy(const Call& call) BELLOWS_REQUIRES(mutex_);
  void note_sizes(const Call& call) BELLOWS_REQUIRES(mutex_);
  void note_convolution(const Call& call) BELLOWS_REQUIRES(mutex_);
  void note_batch_norm(const Call& call) BELLOWS_REQUIRES(mutex_);
  void add_operators(StepProfile& profile) const BELLOWS_REQUIRES(mutex_);
  void add_convolutions(StepProfile& profile) const BELLOWS_REQUIRES(mutex_);
  /// Returns one record per module.
  template <class Record>
  std::vector<Record> merged(std::map<SlowKey, Record> Records::*records) const BELLOWS_REQUIRES(mutex_);
  std::string phase() const BELLOWS_REQUIRES(mutex_) { return phases_.empty() ? "" : phases_.front(); }

  mutable Mutex mutex_;
  ModuleTracker tracker_ BELLOWS_GUARDED_BY(mutex_);
  std::vector<std::string> phases_ BELLOWS_GUARDED_BY(mutex_);                             ///< open scopes
  std::unordered_map<uint64_t, std::vector<Running>> running_ BELLOWS_GUARDED_BY(mutex_);  ///< by thread
  std::vector<Records> steps_ BELLOWS_GUARDED_BY(mutex_);
  std::map<PlacePtr, int64_t> batch_norms_ BELLOWS_GUARDED_BY(mutex_);  ///< samples of the batch
};

}  // namespace bellows::inspect
