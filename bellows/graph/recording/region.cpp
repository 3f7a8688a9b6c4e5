#include "bellows/graph/recording/region.h"

#include <exception>
#include <optional>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/mutex.h"
#include "bellows/graph/recording/plain_calls.h"
#include "bellows/graph/recording/replay_guard.h"
#include "bellows/tap/op_tap.h"

namespace bellows::graph {

/// Each running call has its own tree of recordings. The most recently returned tree is used first, so that consecutive
/// calls share one.
struct Region::State {
  explicit State(const RegionOptions& the_options) : options(the_options) {}

  std::unique_ptr<detail::RecordingTree> take() {
    const MutexLock lock(mutex);
    if (idle.empty()) return std::make_unique<detail::RecordingTree>();
    auto taken = std::move(idle.back());
    idle.pop_back();
    return taken;
  }
  void give_back(std::unique_ptr<detail::RecordingTree> tree, const detail::ReplayGuard& call, uint64_t kind) {
    const MutexLock lock(mutex);
    idle.push_back(std::move(tree));
    total += call.counts();
    plain.note(kind, call.in_vain());
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
  std::vector<std::unique_ptr<detail::RecordingTree>> idle BELLOWS_GUARDED_BY(mutex);
  Explanation total BELLOWS_GUARDED_BY(mutex);
  detail::PlainCalls plain BELLOWS_GUARDED_BY(mutex);
};

Region::Region(const RegionOptions& options) : state_(std::make_shared<State>(options)) {
  TORCH_CHECK_VALUE(options.max_recordings > 0, "Region: expected max_recordings of at least 1, got 0.");
}

void Region::run(const std::function<void()>& function, std::span<const at::Tensor* const> arguments) {
  const std::shared_ptr<State> state = state_;
  if (tap::active_deferral() || tap::any_tap_needs_each_call()) {
    {
      const MutexLock lock(state->mutex);
      ++state->total.nested_calls;
    }
    return function();
  }
  const std::optional<uint64_t> kind = state->kind_of_call(arguments);
  if (!kind) return function();
  auto tree = state->take();
  const auto replay_guard = std::make_shared<detail::ReplayGuard>(*tree, state->options);
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
  state->give_back(std::move(tree), *replay_guard, *kind);
  if (failure) std::rethrow_exception(failure);
}

Explanation Region::explain() const {
  const MutexLock lock(state_->mutex);
  Explanation result = state_->total;
  if (state_->options.backend) result.backend = state_->options.backend->to_text();
  for (const auto& tree : state_->idle) result.recordings += static_cast<int64_t>(tree->recordings());
  return result;
}

std::vector<Graph> Region::graphs() const {
  const MutexLock lock(state_->mutex);
  std::vector<Graph> result;
  for (const auto& tree : state_->idle) {
    for (Graph& graph : tree->graphs()) result.push_back(std::move(graph));
  }
  return result;
}

}  // namespace bellows::graph
