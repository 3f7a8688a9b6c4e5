#include "bellows/graph/replay/call_replay.h"

#include <utility>

#include "bellows/core/log.h"

namespace bellows::graph::detail {

bool CallReplay::run(const CallStart& start, CallFrame& frame, Explanation& counts) {
  if (std::string reason = call_->mismatch(start, frame); !reason.empty()) {
    stop({"", std::move(reason)}, false, counts);
    return false;
  }
  ++counts.calls;
  ++counts.replayed_calls;
  ++unverified_;
  try {
    call_->run(start, frame);
  } catch (const std::exception&) {
    stop({"", "an operator failed"}, false, counts);
    throw;
  }
  return true;
}

std::unique_ptr<CallNotes> CallReplay::begin(std::span<const at::Tensor* const> arguments) {
  poison_ = !poison_;
  auto notes = std::make_unique<CallNotes>(arguments, poison_);
  if (call_) call_->note_contents(*notes);
  return notes;
}

void CallReplay::learn(const CallNotes& notes, const CallStart& start, const CallFrame& frame, bool followed,
                       Explanation& counts) {
  const bool verifies = call_ && identical_ >= options_.after;
  counts.verified_calls += verifies;
  Refusal refusal;
  std::unique_ptr<ReplayedCall> call;
  if (followed)
    call = ReplayedCall::of(notes, start, frame, refusal);
  else
    refusal.why = "the function calls other operators than before";
  if (call && call_) refusal = call->difference_from(*call_);
  if (!refusal.why.empty() && (followed || verifies)) stop(std::move(refusal), verifies, counts);
  unverified_ = 0;
  identical_ = call ? identical_ + 1 : 0;
  call_ = std::move(call);
}

void CallReplay::forget() {
  call_.reset();
  identical_ = 0;
}

/// Counts why calls are not replayed.
/// Params: changed – a verification found that the function has changed
void CallReplay::stop(Refusal refusal, bool changed, Explanation& counts) {
  counts.replay_stops += identical_ >= options_.after;
  if (changed && !std::exchange(said_, true))
    log_warn("compile: a replayed function has changed, so the results of up to ", unverified_,
             " calls may be outdated. From now on, the function runs in each call until it is the same again. Reason: ",
             refusal.op.empty() ? "" : refusal.op + ": ", refusal.why);
  count_cause(counts.replay_causes, refusal.op, refusal.why, "");
  forget();
}

}  // namespace bellows::graph::detail
