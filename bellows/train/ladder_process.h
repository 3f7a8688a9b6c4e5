#pragma once

#include <functional>
#include <memory>

#include "bellows/train/ladder.h"

namespace bellows::train {

/// A job that lives in a child of this process, so that neither the memory that another job has kept, nor threads, nor
/// anything else that cannot be undone stands between two jobs that are compared. It makes the job with `make`, as this
/// process would. Where that is not possible, because this process already has threads, the job lives here.
/// Threads: one owner
/// Throws:  what `make` throws; c10::Error – the child ended early
std::unique_ptr<LadderJob> in_own_process(const std::function<std::unique_ptr<LadderJob>()>& make);

}  // namespace bellows::train
