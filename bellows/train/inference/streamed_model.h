#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bellows/parallel/placement/streamed_weights.h"
#include "bellows/train/inference/trained_model.h"

namespace bellows::train {

/// Options of load_streamed_run() and load_streamed().
struct WeightMemory {
  int64_t bytes = 0;  ///< budget for the weights, as StreamedWeightsOptions::memory_bytes
  /// Folder for weights that are not in a safetensors file, such as those of a checkpoint. They are written there once,
  /// and used again by later calls. If empty, such weights are an error.
  std::string folder = {};
};

/// A trained model whose weights are read from a file while it runs.
struct StreamedModel {
  TrainedModel trained;  ///< its `model` loads the weights when it is called
  std::shared_ptr<parallel::StreamedWeights> weights;
  std::string file;  ///< the safetensors file from which the weights are read
};

/// Like load_run(), but the weights stay in a file, except for those that fit into the budget.
///
/// Compiled forward passes are not supported, so the recipe's `compile` is ignored.
/// Numerics: predictions and evaluations are identical to those of load_run()
/// Cost:     the first call for a checkpoint loads the model into memory once, and writes its weights to the folder. If
///           the newest checkpoint cannot be read, each call loads the previous one into memory
/// Throws:   c10::ValueError like load_run() and StreamedWeights. Also if there is no folder, the budget is not
///           positive, the model was trained with the key `quantize`, or it is a TorchScript file. c10::Error if the
///           folder is not writable
StreamedModel load_streamed_run(const std::string& run, const Recipe& recipe, const WeightMemory& memory);

/// Like load_trained(), but the weights stay in a file, except for those that fit into the budget. Safetensors files are
/// used directly, with the names of load_weights(). Other files are converted like a checkpoint of a run.
/// Throws: like load_trained() and load_streamed_run(). Also if the weights are quantized
StreamedModel load_streamed(const Recipe& recipe, const std::string& weights, const WeightMemory& memory);

}  // namespace bellows::train
