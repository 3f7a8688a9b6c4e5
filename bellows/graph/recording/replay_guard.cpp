#include "bellows/graph/recording/replay_guard.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "bellows/graph/recording/record.h"
#include "bellows/system/call_site.h"

namespace bellows::graph::detail {
namespace {

/// Returns: the facts of an operator that may be the next step. Avoids the look-up for other operators.
const OperatorFacts* facts_among(const std::vector<std::unique_ptr<Step>>& steps, const c10::OperatorHandle& handle) {
  const auto found =
      std::find_if(steps.begin(), steps.end(), [&](const auto& step) { return *step->compact.op->handle == handle; });
  return found == steps.end() ? nullptr : (*found)->compact.op;
}

/// Marks the storages of an operator's plain tensors as used while it runs, so that no other region's hold makes them
/// throw.
class InUse {
 public:
  InUse(const tap::OpCall& op, tap::Stack& stack) {
    for (const c10::IValue& value : op.arguments(stack)) {
      if (!value.isTensor() && !(value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()))
        continue;
      for_each_tensor(value, [&](const at::Tensor& tensor) {
        if (tensor.defined() && is_plain(tensor)) holds_.hold(tensor.storage(), false);
      });
    }
    holds_.open();
  }

 private:
  tap::StorageHolds holds_;
};

/// True for memory that the storage does not own (from_blob). Its owner may free or overwrite it as soon as the
/// operator has been called.
bool is_borrowed(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.get() && !data.get_context();
}

thread_local bool* seen_here = nullptr;

std::unique_ptr<at::ObserverContext> look(const at::RecordFunction& function) {
  const auto name = function.operator_name();
  const auto op = name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
  if (op && (op->hasTag(at::Tag::data_dependent_output) || op->hasTag(at::Tag::dynamic_output_shape)))
    *seen_here = true;
  return nullptr;
}

/// While it lives, detects operators on this thread that read data: those that return a number of a tensor, or whose
/// result sizes depend on data. This is necessary in inference mode, where composite operators arrive whole and have no
/// tag for operators inside.
class DataDependence {
 public:
  /// Params: op – a composite operator; for others, nothing is detected
  explicit DataDependence(const c10::OperatorHandle& op);
  ~DataDependence();
  DataDependence(const DataDependence&) = delete;
  DataDependence& operator=(const DataDependence&) = delete;
  bool seen() const { return seen_; }

 private:
  uint64_t callback_ = 0;  ///< 0: none
  bool* outer_ = nullptr;
  bool seen_ = false;
};

DataDependence::DataDependence(const c10::OperatorHandle& op) : outer_(seen_here) {
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return;
  seen_here = &seen_;
  callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(look).scopes({at::RecordScope::FUNCTION}));
}

DataDependence::~DataDependence() {
  if (callback_ == 0) return;
  at::removeCallback(callback_);
  seen_here = outer_;
}

void run(const tap::OpCall& op, tap::Stack& stack) {
  const InUse in_use(op, stack);
  op.next(stack);
}

}  // namespace

void ReplayGuard::call(const tap::OpCall& op, tap::Stack& stack) {
  const MutexLock lock(mutex_);
  if (plain_ || ended_ || eager_guards_ > 0) {
    if (notes_) notes_->refuse(op.qualified_name(), "runs eagerly, for example because of an eager_guard");
    return run(op, stack);
  }
  const size_t operators = pending_.operators.size(), numbers = pending_.numbers.size();
  try {
    follow_or_record(op, stack);
  } catch (...) {
    undo(operators, numbers);
    throw;
  }
}

/// Cleans up after an error, which any allocation may raise: the operator is not pending, and its buffers are removed.
void ReplayGuard::undo(size_t operators, size_t numbers) {
  if (pending_.operators.size() > operators) pending_.operators.resize(operators);
  if (pending_.numbers.size() > numbers) pending_.numbers.resize(numbers);
  stand_at(at_);
  std::erase_if(busy_,
                [&](BufferId id) BELLOWS_REQUIRES(mutex_) { return static_cast<size_t>(id) >= buffers_.size(); });
  if (pending_.operators.empty()) settle();
}

void ReplayGuard::follow_or_record(const tap::OpCall& op, tap::Stack& stack) {
  const OperatorFacts* const facts = facts_among(at_->next, op.handle());
  if (!facts) {
    if (!at_->next.empty()) note_mismatch(op, nullptr);
    return record(op, stack);
  }
  const Arrival arrival(op, *facts, stack, buffers_);
  if (const Found found = find(arrival); found.step) {
    if (found.agreement == Agreement::tensors) {
      counts_.lifted += lift_numbers(found.step->recorded, arrival);
      tree_.renew(*found.step);
    }
    return follow(found.step, arrival, op, stack);
  }
  stand_at(at_);
  note_mismatch(op, &arrival);
  record(op, stack);
}

/// A step that matches completely takes precedence over one whose numbers would have to become inputs.
ReplayGuard::Found ReplayGuard::find(const Arrival& arrival) const {
  Found best;
  if (arrival.foreign) return best;
  for (const auto& step : at_->next) {
    if (step->compact.matches(arrival)) return {step.get(), Agreement::all};
    const Agreement agreement = compare(step->recorded, arrival);
    if (agreement > best.agreement) best = {step.get(), agreement};
  }
  return best;
}

void ReplayGuard::follow(Step* step, const Arrival& arrival, const tap::OpCall& op, tap::Stack& stack) {
  if (notes_) notes_->note_arguments(step->recorded.instruction, arrival);
  if (step->compact.when == When::later) {
    ++counts_.followed;
    defer(step, arrival, stack);
  } else {
    run_now(step, arrival, op, stack);
  }
}

void ReplayGuard::defer(Step* step, const Arrival& arrival, tap::Stack& stack) {
  const CompactOperator& compact = step->compact;
  bool borrows = false;
  if (compact.view) {
    ++counts_.views;
  } else {
    ++counts_.deferred;
    borrows = wait_for(arrival);
    pending_.operators.push_back(&step->recorded);
    if (compact.lifts_numbers) add_lifted_numbers(step->recorded.instruction, arrival, pending_.numbers);
  }
  auto results = answers(*step, arrival);
  stack.resize(stack.size() - arrival.arguments.size());
  for (c10::IValue& value : results) stack.push_back(std::move(value));
  stand_at(step);
  if (borrows) flush();
}

/// Keeps the operator's tensors until it runs: their data must stay alive, and the host must not access it before.
/// Returns: true if some memory is borrowed, so that this is not possible
bool ReplayGuard::wait_for(const Arrival& arrival) {
  bool borrows = false;
  for (size_t i = 0; i < arrival.buffers.size(); ++i) {
    const BufferId id = arrival.buffers[i];
    if (id < 0 || buffers_[id].busy()) continue;
    const c10::Storage& storage = arrival.tensors[i]->storage();
    borrows = borrows || is_borrowed(storage);
    busy_.push_back(id);
    holds_.hold(storage, options_.guard_inputs);
    buffers_[id].real = storage;
  }
  return borrows;
}

ReplayGuard::Answers ReplayGuard::answers(const Step& step, const Arrival& arrival) {
  const CompactOperator::Result* next = step.compact.results.data();
  Answers results;
  if (step.compact.results.size() == 1 && !next->list) {
    results.emplace_back(answer(*next, arrival));
    return results;
  }
  for (const Instruction::Result& result : step.recorded.instruction.results) {
    if (!result.list) {
      results.emplace_back(answer(*next++, arrival));
      continue;
    }
    c10::List<at::Tensor> list;
    list.reserve(result.operands.size());
    for (size_t i = 0; i < result.operands.size(); ++i) list.push_back(answer(*next++, arrival));
    results.emplace_back(std::move(list));
  }
  return results;
}

at::Tensor ReplayGuard::answer(const CompactOperator::Result& result, const Arrival& arrival) {
  const BufferId id = result.buffer;
  if (id == no_buffer) return {};
  if (result.argument >= 0) return *arrival.tensors[result.argument];
  if (!result.made) {
    at::Tensor view = result.geometry->over(c10::Storage(buffers_[id].weak.lock()), result.counted);
    if (notes_) notes_->note_view(id, view);
    return view;
  }
  c10::Storage storage(tap::make_pending_storage(result.nbytes, result.geometry->device));
  busy_.push_back(id);
  buffers_.add(storage);
  buffers_[id].pending = true;
  at::Tensor made = result.geometry->over(std::move(storage), result.counted);
  if (notes_) notes_->note_pending(id, made);
  return made;
}

/// Returns whether the pending operators must run before an operator that runs immediately.
bool ReplayGuard::needs_pending(When when, const OperatorFacts& facts, const Arrival& arrival) {
  bool needs = when == When::flush;
  if (facts.reads_no_data) return needs;
  for (const BufferId id : arrival.buffers) needs = needs || (id >= 0 && buffers_[id].busy());
  return needs;
}

void ReplayGuard::run_now(Step* step, const Arrival& arrival, const tap::OpCall& op, tap::Stack& stack) {
  const OperatorFacts& facts = step->recorded.op();
  const bool waits = needs_pending(step->recorded.when, facts, arrival);
  if (waits && notes_) notes_->refuse(facts.name, "is a barrier, so the call consists of several programs");
  if (waits) flush();
  const std::vector<c10::IValue> arguments(arrival.arguments.begin(), arrival.arguments.end());
  try {
    facts.reads_no_data ? op.next(stack) : run(op, stack);
  } catch (...) {
    stand_at(at_);
    throw;
  }
  const int64_t followed = counts_.followed;
  Step* const agreeing = step_with_results(step, arguments, op.results(stack));
  if (counts_.followed > followed) {
    ++(waits ? counts_.barriers : counts_.at_once);
    if (waits && !step->site) step->site = call_site();
    if (waits) count_cause(counts_.barrier_causes, facts.name, "", *step->site);
  }
  if (notes_) notes_->note_ran_now(agreeing->recorded, arguments, op.results(stack));
  stand_at(agreeing);
}

/// Returns: the next step whose results match those of the operator; if there is none, the operator is recorded
Step* ReplayGuard::step_with_results(Step* first, std::span<const c10::IValue> arguments,
                                     std::span<const c10::IValue> results) {
  const size_t known = buffers_.size();
  const auto fits = [&](const Step& step) BELLOWS_REQUIRES(mutex_) {
    if (results_fit(step.recorded.instruction, results, buffers_)) return true;
    buffers_.truncate(known);
    return false;
  };
  if (fits(*first)) {
    ++counts_.followed;
    return first;
  }
  for (const auto& step : at_->next) {
    const Instruction &a = step->recorded.instruction, &b = first->recorded.instruction;
    if (step.get() == first || a.op != b.op || step->recorded.when == When::later) continue;
    const bool same_tensors = std::equal(
        a.arguments.begin(), a.arguments.end(), b.arguments.begin(), b.arguments.end(),
        [](const auto& one, const auto& other) { return one.kind == other.kind && one.operands == other.operands; });
    if (same_tensors && fits(*step)) {
      ++counts_.followed;
      return step.get();
    }
  }
  flush(true);
  ++counts_.recorded;
  ++counts_.mismatches;
  count_cause(counts_.mismatch_causes, first->recorded.op().name,
              "results with different sizes, or results of different tensors", call_site());
  return tree_.append(at_, OperatorRecorder(first->recorded, arguments).finish(results, buffers_));
}

void ReplayGuard::record(const tap::OpCall& op, tap::Stack& stack) {
  flush(true);
  if (at_->depth >= options_.max_operators) {
    flush();
    plain_ = true;
    counts_.abandoned = 1;
    return run(op, stack);
  }
  OperatorRecorder recorder(op, stack, buffers_);
  if (options_.record_deferred && defer_recorded(op, stack, recorder)) return;
  try {
    const DataDependence dependence(op.handle());
    run(op, stack);
    if (dependence.seen()) recorder.note_look();
  } catch (...) {
    stand_at(at_);
    throw;
  }
  ++counts_.recorded;
  stand_at(tree_.append(at_, std::move(recorder).finish(op.results(stack), buffers_)));
}

/// Defers an operator that no recording has, as later calls will. If it cannot be deferred, runs the pending operators
/// that have to run before it.
/// Returns: whether it is deferred
bool ReplayGuard::defer_recorded(const tap::OpCall& op, tap::Stack& stack, OperatorRecorder& recorder) {
  const OperatorFacts& facts = operator_facts(op.handle());
  const Arrival arrival(op, facts, stack, buffers_);
  const auto on_cpu = [&](const c10::IValue& value) {
    bool all = true;
    for_each_tensor(value, [&](const at::Tensor& tensor) { all = all && (!tensor.defined() || tensor.is_cpu()); });
    return all;
  };
  const bool stands = std::all_of(arrival.arguments.begin(), arrival.arguments.end(), on_cpu);
  if (stands && recorder.when() == When::later && !arrival.foreign) {
    if (auto recorded = try_on_stand_ins(op, facts, stack, recorder)) {
      ++counts_.recorded;
      defer(tree_.append(at_, std::move(*recorded)), arrival, stack);
      return true;
    }
    recorder.note_look();
  }
  if (needs_pending(recorder.when(), facts, arrival)) flush();
  return false;
}

/// Returns: the operator with its results if it can be deferred; nothing if it reads data on the host, or fails on
///          stand-ins: its arguments are invalid, or zeros are no valid data for it
std::optional<RecordedOperator> ReplayGuard::try_on_stand_ins(const tap::OpCall& op, const OperatorFacts& facts,
                                                              tap::Stack& stack, OperatorRecorder recorder) {
  if (!facts.runs_on_zeros) return {};
  if (facts.results == 0) return std::move(recorder).finish(std::span<const c10::IValue>(), buffers_);
  TrialResults& known = tree_.trial_results();
  if (auto found = known.find(recorder.begun(), static_cast<BufferId>(buffers_.size()))) return found;
  try {
    StandIns stand_ins(op, facts, stack, buffers_);
    const DataDependence dependence(op.handle());
    run(op, stand_ins.stack());
    if (dependence.seen()) return {};
    RecordedOperator recorded = std::move(recorder).finish(stand_ins, buffers_);
    if (recorded.when != When::later) return {};
    known.add(recorded);
    return recorded;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return {};
  }
}

/// Moves to a step. Removes the buffers of operators that did not lead there.
void ReplayGuard::stand_at(Step* step) {
  if (step->parent == at_ && at_->next.front().get() != step) {
    const auto found =
        std::find_if(at_->next.begin(), at_->next.end(), [&](const auto& one) { return one.get() == step; });
    std::rotate(at_->next.begin(), found, found + 1);  // the next call tries it first
  }
  at_ = step;
  buffers_.truncate(step->compact.buffers_after);
}

void ReplayGuard::note_mismatch(const tap::OpCall& op, const Arrival* arrival) {
  ++counts_.mismatches;
  const RecordedOperator& expected = at_->next.front()->recorded;
  std::string why;
  if (!arrival) {
    why = "instead of " + expected.op().name;
  } else if (arrival->foreign) {
    why = "a pending tensor of another region";
  } else {
    why = difference(expected, *arrival);
  }
  count_cause(counts_.mismatch_causes, op.qualified_name(), why, call_site());
}

/// Returns: the plan for the pending operators, or null if there is none. If the call diverged from all recordings here,
///          the back end prepares no new program, because the next call will not take this path.
Plan* ReplayGuard::plan(bool diverged) {
  alive_.clear();
  for (const BufferId id : busy_) {
    if (buffers_[id].pending) alive_.push_back(buffers_[id].weak.use_count() > 0);
  }
  Plans& plans = at_->plans;
  const auto find_or_make = [&](Backend* backend, bool make) BELLOWS_REQUIRES(mutex_) {
    Plan* const found = plans.find(from_, alive_, pending_.numbers.size(), !backend);
    return found || !make ? found : plans.make(backend, from_, pending_, alive_, buffers_);
  };
  if (options_.backend) {
    const size_t known = plans.made();
    Plan* const found = find_or_make(options_.backend.get(), !diverged);
    counts_.programs += plans.made() > known && found->executable;
    if (found && found->executable && !found->inputs_overlap(buffers_)) return found;
  }
  return find_or_make(nullptr, !diverged || plans.diverged_before());
}

/// Clears the pending operators.
void ReplayGuard::settle() {
  holds_.release();
  for (const BufferId id : busy_) {
    buffers_[id].real = {};
    buffers_[id].pending = false;
  }
  busy_.clear();
  pending_.operators.clear();
  pending_.numbers.clear();
  from_ = at_;
}

/// Runs the pending operators.
/// Params: diverged – the call left its recordings. With `record_deferred`, the operators then stay pending
void ReplayGuard::flush(bool diverged) {
  if (pending_.operators.empty() || (diverged && options_.record_deferred)) return;
  if (notes_ && !finishing_)
    notes_->refuse(pending_.operators.back()->op().name,
                   "must run before the function returns, because its result is needed");
  struct Done {
    ReplayGuard& self;
    bool failed = true;
    ~Done() {
      self.settle();
      self.plain_ = self.plain_ || failed;
    }
  } done{*this};
  holds_.open();
  Plan* planned = nullptr;
  try {
    planned = plan(diverged);
    if (notes_) notes_->note_run(planned, pending_, buffers_);
  } catch (const std::bad_alloc&) {  // without a plan, operators run in order
  }
  worthwhile_ = worthwhile_ || !planned || planned->in_order || planned->executable->is_worthwhile();
  if (planned)
    planned->run(pending_, buffers_, counts_);
  else
    run_once(pending_, buffers_, counts_);
  done.failed = false;
}

void ReplayGuard::sync() {
  const MutexLock lock(mutex_);
  if (!ended_) flush();
}

/// Operators that run meanwhile are not part of the recording. Their results are new inputs if they are used later.
void ReplayGuard::set_deferring(bool on) {
  const MutexLock lock(mutex_);
  eager_guards_ += on ? -1 : 1;
}

void ReplayGuard::finish() {
  const MutexLock lock(mutex_);
  struct Ended {
    ReplayGuard& self;
    ~Ended() {
      self.ended_ = true;
      self.tree_.end_call(self.at_);
      self.counts_.calls = 1;
      self.counts_.followed_calls = self.counts_.recorded == 0 && self.counts_.abandoned == 0;
      try {
        if (self.counts_.recorded > 0) self.counts_.dropped = self.tree_.prune(self.options_.max_recordings);
      } catch (const std::bad_alloc&) {  // a later call that records will prune
      }
    }
  } ended{*this};
  finishing_ = true;
  flush();
}

}  // namespace bellows::graph::detail
