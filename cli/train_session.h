#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "bellows/comm/elastic/elastic_world.h"
#include "bellows/train/trainer.h"
#include "cli/interrupt.h"

namespace bellows::cli {

/// Whether a training run resumes.
struct TrainResume {
  bool resume = false;
  bool accept_changes = false;  ///< resume even though changed settings change the results
};

/// Trains one recipe after another and shows their epochs, as `bellows train` does. Joins the ranks of a launcher. Stop
/// signals end all waits before training, and end the run after the current step during training. Create one object per
/// process. It changes the log sink of the process. SIGUSR2 records a trace of the next steps.
class TrainSession {
 public:
  /// Params: saves – whether the runs have a folder, in which a stopped run saves a checkpoint
  explicit TrainSession(bool saves);

  /// Params: recipe – with several ranks, its device becomes the device of this rank
  /// Throws: exceptions of Trainer::fit(); Stopped if a signal arrived before the first step
  train::FitResult train(train::Recipe& recipe, const TrainResume& how);
  /// The ranks. With bellows launch --replace-lost, train() joins them, and they may change during train().
  const World& world() const { return elastic_ ? elastic_->world() : *world_; }
  /// Returns whether this process reports the results.
  bool is_first() const;
  /// Returns the exit code of the command after this training.
  static int exit_code(const train::FitResult& result);

 private:
  class Of;  // during its lifetime, signals also stop a trainer
  static void on_signal(void* self);
  void note_ranks();

  std::atomic<train::Trainer*> trainer_ = nullptr;
  std::atomic<bool> several_ranks_ = false;
  const Interrupt interrupt_;
  const TraceSignal trace_signal_;
  std::optional<World> world_;  ///< empty if elastic_ is set
  std::shared_ptr<comm::ElasticWorld> elastic_;
  const std::shared_ptr<std::atomic<bool>> first_ = std::make_shared<std::atomic<bool>>(true);
};

/// Prints the result of a training run in one sentence, and its checkpoint. If the run was stopped, also prints
/// `resume_hint`.
void print_fit(const train::Recipe& recipe, const train::FitResult& result, const std::string& resume_hint);
/// Returns the result of a training run as JSON.
std::string fit_json(const train::Recipe& recipe, const train::FitResult& result);

}  // namespace bellows::cli
