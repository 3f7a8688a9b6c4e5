#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bellows/ladder/ladder.h"
#include "bellows/techniques/inference_technique.h"

namespace bellows::train {

/// Starts the models that a ladder for inference compares.
class InferenceJobs {
 public:
  virtual ~InferenceJobs() = default;
  /// Returns a model with these settings. A step of the job is a forward pass of one batch.
  virtual std::unique_ptr<LadderJob> with(const InferenceSettings& settings) = 0;
};

/// The subject of a ladder for inference.
struct InferenceSubject {
  std::string model;          ///< name of the model
  std::string data;           ///< describes the inputs
  InferenceSettings start{};  ///< rung 0: eager, with gradients recorded
  bool has_accuracy = false;  ///< whether to judge by accuracy; otherwise by the difference of the outputs
};

/// Measures one technique for inference after another, with the windows and the statistics of the ladder for training
/// (ladder.h). A technique is kept if the forward pass becomes faster and the accuracy on all evaluation data holds: it
/// may fall by at most `max_drop` compared with rung 0. Only faster rungs are evaluated. Without an accuracy, the outputs
/// may differ from those of rung 0 by at most `max_difference`. At the end, rung 0 and the last kept rung run alternately.
/// Their ratio is the total speedup.
/// Returns: a report with the goal `inference`. A step is a batch. Peaks include the weights
/// Cost:    per technique 2 · pairs windows, two models that are loaded, and one evaluation if it is faster
/// Throws:  c10::ValueError if an option is out of range; exceptions of rung 0
LadderReport run_inference_ladder(const InferenceSubject& subject, const std::vector<InferenceTechnique>& techniques,
                                  InferenceJobs& jobs, const LadderOptions& options,
                                  const LadderInstruments& instruments,
                                  const std::function<void(const LadderEvent&)>& on_event = {});

}  // namespace bellows::train
