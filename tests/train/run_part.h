#pragma once

#include <vector>

#include "bellows/train/trainer.h"
#include "tests/train/support.h"

namespace bellows::train {

/// Losses of all steps, what came of it, and the weights at the end.
struct RunTrace {
  std::vector<float> losses;
  FitResult result;
  std::vector<at::Tensor> weights;
};

/// Params: stop_after – asks for a stop after so many steps of this part; 0: never
inline RunTrace run_part(const Recipe& recipe, bool resume, int stop_after, bool accept_changes = false) {
  RunTrace trace;
  Trainer* running = nullptr;
  Callbacks callbacks;
  callbacks.on_step = [&](const TrainLoop& loop) {
    trace.losses.push_back(loop.last_loss().item<float>());
    if (static_cast<int>(trace.losses.size()) == stop_after) running->request_stop();
    trace.weights = copies_of(loop.job().model);
  };
  Trainer trainer(recipe, callbacks);
  running = &trainer;
  trainer.resume(resume);
  trainer.accept_changes(accept_changes);
  trace.result = trainer.fit();
  return trace;
}

}  // namespace bellows::train
