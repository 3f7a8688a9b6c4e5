#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "bellows/train/inference/trained_model.h"
#include "bellows/train/step/evaluation.h"

namespace bellows::train {

/// Options of evaluate(TrainedModel).
struct EvaluationOptions {
  /// Dataset to evaluate on. If empty, this is the recipe's held-out data, or with `split`, a split of the recipe's
  /// `data`.
  std::string data = {};
  /// Name of a split. If empty and `data` has several splits, this is "test".
  std::string split = {};
  int64_t batch_size = 0;  ///< 0: as in the evaluations of training
  bool compile = false;    ///< compile the forward pass with frozen weights, instead of the recipe's `compile`
};

/// The result of evaluating a trained model.
struct ModelEvaluation {
  Evaluation evaluation;     ///< loss, accuracy and metrics; `seconds` includes loading and compiling
  std::string data;          ///< describes the evaluated samples, such as "data/digits, split test"
  int64_t batches = 0;       ///< number of batches
  int64_t batch_size = 0;    ///< number of samples in all batches but the last one
  int64_t weight_bytes = 0;  ///< size of the parameters and buffers
  double samples_per_second = 0;
  /// Time of the forward pass of a full batch, without loading: median and 90th percentile. If there are several full
  /// batches, the first one is not counted, because it includes warm-up and compilation. NaN if there is no full batch
  double latency_median_s = std::numeric_limits<double>::quiet_NaN();
  double latency_p90_s = std::numeric_limits<double>::quiet_NaN();
};

/// Evaluates a trained model with the loss and the metrics of its recipe. Shows progress.
/// Numerics: with default options, the result is identical to the evaluation that the training run made with these
///           weights (tests/train/inference/evaluate_test.cpp)
/// Throws:   c10::ValueError if there is no held-out data, the data cannot be opened, or the split is unknown. Also if the
///           classes of the data differ from those of the model, or a label is missing or out of range. Stopped after
///           request_stop()
ModelEvaluation evaluate(const TrainedModel& trained, const EvaluationOptions& options = {});

/// Reads the first batches that evaluate() would run, for measurements of the forward pass.
/// Params:  batches – number of batches; fewer if there is less data. Only full batches are read, unless there is none
/// Returns: the inputs of each batch, in the order of the model's inputs
/// Throws:  like evaluate()
std::vector<std::vector<at::Tensor>> evaluation_inputs(const TrainedModel& trained, const EvaluationOptions& options,
                                                       int64_t batches);

}  // namespace bellows::train
