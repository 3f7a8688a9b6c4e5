#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/train/inference/prediction_inputs.h"
#include "bellows/train/inference/trained_model.h"

namespace bellows::train {

/// The prediction for one input, or the reason why there is none.
struct Prediction {
  std::string file;    ///< path of the input's file; empty for a dataset
  int64_t index = -1;  ///< position of the sample in its file or dataset, from 0 on; -1 if the file is one sample
  std::string error;   ///< empty if there is a prediction
  /// For models that predict one class per sample: classes with their probabilities, most probable class first.
  std::vector<std::pair<int64_t, double>> top;
  /// For loss `bce`: the probability of each label. For regression: the predicted numbers.
  std::vector<double> values;
};

/// Options of predict(TrainedModel).
struct PredictionOptions {
  int64_t batch_size = 0;  ///< 0: as in the evaluations of training
  int64_t top = 1;         ///< number of classes in Prediction::top; at most the number of classes
  bool compile = false;    ///< compile the forward pass with frozen weights
};

/// Counts of predict().
struct PredictionCounts {
  int64_t predicted = 0, failed = 0;
  double seconds = 0;
};

/// Predicts all inputs in batches, which are loaded in the background. Inputs pass through the same transforms as in
/// the evaluations of training (prediction_batches()). Shows progress.
/// Params:  on_prediction – called for each input, in the order of the inputs, also for inputs that cannot be read
/// Returns: the numbers of inputs with and without a prediction
/// Throws:  c10::ValueError if the model predicts tokens or a class per pixel, an option is out of range, or the output
///          of the model has a wrong shape. Stopped after request_stop(). Exceptions of `on_prediction`
PredictionCounts predict(const TrainedModel& trained, const PredictionInputs& inputs, const PredictionOptions& options,
                         const std::function<void(const Prediction&)>& on_prediction);

/// Returns the names of the classes, or of the labels with loss `bce`. Empty if they have numbers only.
std::vector<std::string> prediction_names(const TrainedModel& trained);

}  // namespace bellows::train
