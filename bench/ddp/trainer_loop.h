#pragma once

#include <memory>
#include <string>

#include "bellows/comm/group.h"
#include "bellows/train/step/train_loop.h"

namespace bellows::bench {

/// A training loop of the trainer on several ranks, for settings that only the trainer has.
/// Params: model – see make_task(). An epoch has eight batches
///         parts – the recipe's `reproducible_ranks`; 0: plain DDP
std::unique_ptr<train::TrainLoop> make_trainer_loop(const std::string& model, const comm::Group& ranks,
                                                    double learning_rate, int64_t parts);

}  // namespace bellows::bench
