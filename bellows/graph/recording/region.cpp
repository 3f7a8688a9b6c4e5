#include "bellows/graph/recording/region.h"

#include <exception>
#include <new>
#include <optional>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/mutex.h"
#include "bellows/graph/recording/plain_calls.h"
#include "bellows/graph/recording/replay_guard.h"
#include "bellows/graph/replay/call_replay.h"
#include "bellows/tap/op_tap.h"

namespace bellows::graph {

/// Each running call has its own tree of recordings. The most recently returned tree is used first, so that consecutive
/// calls share one.
struct Region::State {
  /// The recordings of one running call at a time.
  struct Lane {
    explicit Lane(const ReplayOptions& options) : replay(options) {}
    detail::RecordingTree tree;
    detail::CallReplay replay;
  };

  explicit State(const RegionOptions& the_options) : options(the_options) {}

  std::unique_ptr<Lane> take() {
    const MutexLock lock(mutex);
    if (idle.empty()) return std::make_unique<Lane>(options.replay);
    auto taken = std::move(idle.back());
    idle.pop_back();
    return taken;
  }
  void give_back(std::unique_ptr<Lane> lane, const Explanation& counts) {
    const MutexLock lock(mutex);
    idle.push_back(std::move(lane));
    total += counts;
  }
  void note_kind(uint64_t kind, std::span<const at::Tensor* const> arguments, bool in_vain) {
    const MutexLock lock(mutex);
    kind == 0 ? plain.note_first(arguments, in_vain) : plain.note(kind, in_vain);
  }
  /// Returns the kind of a call that is to be followed, or nothing if the call runs eagerly.
  std::optional<uint64_t> kind_of_call(std::span<const at::Tensor* const> arguments) {
    const MutexLock lock(mutex);
    const uint64_t kind = plain.kind_of_call(arguments);
    if (!plain.take(kind)) return kind;
    ++total.calls;
    ++total.plain_calls;
    return {};
  }

  const RegionOptions options;
  mutable Mutex mutex;
  std::vector<std::unique_ptr<Lane>> idle BELLOWS_GUARDED_BY(mutex);
  Explanation total BELLOWS_GUARDED_BY(mutex);
  detail::PlainCalls plain BELLOWS_GUARDED_BY(mutex);
};

Region::Region(const RegionOptions& options) : state_(std::make_shared<State>(options)) {
  TORCH_CHECK_VALUE(options.max_recordings > 0, "Region: expected max_recordings of at least 1, got 0.");
  TORCH_CHECK_VALUE(options.replay.after == 0 || options.replay.after >= 2,
                    "Region: replay.after must be 0 (no replay) or at least 2, got ", options.replay.after, ".");
  TORCH_CHECK_VALUE(options.replay.verify_every >= 2, "Region: replay.verify_every must be at least 2, got ",
                    options.replay.verify_every, ".");
}

bool Region::run(const std::function<void()>& function, std::span<const at::Tensor* const> arguments,
                 CallFrame* frame) {
  const std::shared_ptr<State> state = state_;
  if (tap::active_deferral() || tap::any_tap_needs_each_call()) {
    {
      const MutexLock lock(state->mutex);
      ++state->total.nested_calls;
    }
    function();
    return false;
  }
  if (state->options.replay.after == 0) frame = nullptr;
  if (frame && replay(*state, arguments, *frame)) return true;
  if (const std::optional<uint64_t> kind = state->kind_of_call(arguments))
    follow(*state, function, arguments, frame, *kind);
  else
    function();
  return false;
}

bool Region::replay(State& state, std::span<const at::Tensor* const> arguments, CallFrame& frame) {
  frame.returned.clear();
  frame.lengths.clear();
  auto lane = state.take();
  Explanation counts;
  bool replayed = false;
  std::exception_ptr failure;
  try {
    if (lane->replay.ready()) replayed = lane->replay.run(detail::CallStart(arguments), frame, counts);
  } catch (...) {
    failure = std::current_exception();
  }
  state.give_back(std::move(lane), counts);
  if (failure) std::rethrow_exception(failure);
  return replayed;
}

void Region::follow(State& state, const std::function<void()>& function, std::span<const at::Tensor* const> arguments,
                    CallFrame* frame, uint64_t kind) {
  auto lane = state.take();
  std::optional<detail::CallStart> start;
  std::unique_ptr<detail::CallNotes> notes;
  if (frame) {
    start.emplace(arguments);
    notes = lane->replay.begin(arguments);
  }
  const auto replay_guard = std::make_shared<detail::ReplayGuard>(lane->tree, state.options, notes.get());
  std::exception_ptr failure;
  {
    const tap::OpTapGuard guard(replay_guard);
    try {
      function();
    } catch (...) {
      failure = std::current_exception();
    }
  }
  try {
    replay_guard->finish();
  } catch (const std::exception& error) {
    if (failure)
      log_error("Region: after the function threw an exception, a pending operator also failed: ", user_message(error));
    else
      failure = std::current_exception();
  }
  Explanation counts = replay_guard->counts();
  try {
    if (frame && !failure) lane->replay.learn(*notes, *start, *frame, counts.followed_calls > 0, counts);
  } catch (const std::bad_alloc&) {
    lane->replay.forget();
  }
  if (failure) lane->replay.forget();
  state.note_kind(kind, arguments, replay_guard->in_vain() && !failure);
  state.give_back(std::move(lane), counts);
  if (failure) std::rethrow_exception(failure);
}

Explanation Region::explain() const {
  const MutexLock lock(state_->mutex);
  Explanation result = state_->total;
  if (state_->options.backend) result.backend = state_->options.backend->to_text();
  for (const auto& lane : state_->idle) result.recordings += static_cast<int64_t>(lane->tree.recordings());
  if (state_->options.replay.after == 0) result.advice = detail::advice_for(result);
  return result;
}

std::vector<Recording> Region::recordings() const {
  const MutexLock lock(state_->mutex);
  std::vector<Recording> result;
  for (const auto& lane : state_->idle) {
    for (Recording& recording : lane->tree.all()) result.push_back(std::move(recording));
  }
  return result;
}

}  // namespace bellows::graph
