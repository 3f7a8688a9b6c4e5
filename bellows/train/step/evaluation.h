#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bellows/comm/group.h"
#include "bellows/core/model.h"
#include "bellows/data/loader/loader.h"
#include "bellows/train/recipe/recipe.h"
#include "bellows/train/step/compiled_parts.h"
#include "bellows/train/task.h"

namespace bellows::train {

/// The result of an evaluation.
struct Evaluation {
  double loss = 0;      ///< mean over samples or tokens; for tokens, its exponential is the perplexity
  double accuracy = 0;  ///< share of correct samples, pixels, labels or tokens; NaN for predicted numbers
  int64_t samples = 0;  ///< number of samples; for language models, number of tokens
  double seconds = 0;
  std::vector<std::pair<std::string, double>> metrics{};  ///< metrics of the task, by name
};

/// The rank of a group that has the outputs of a model, such as that of the last stage of a pipeline.
struct OutputRank {
  const comm::Group* group = nullptr;  ///< ranks that call the model together
  int rank = 0;                        ///< rank in this group
};

/// Evaluates `model` on one epoch of `loader`. The model runs in evaluation mode, without gradients, and with the
/// recipe's precision. Afterwards, the function restores the mode of the model. Batches of packed texts are evaluated
/// on their next tokens.
/// Params: task     – by default, one class per sample in `batch["label"]`
///         ranks    – ranks whose loaders each have a share of the data, or null if this process has all data
///         compiled – runs the forward passes; if null, they run eagerly
///         output_rank – the rank that has the outputs, and sends the results to the other ranks of its group; on
///                    those, outputs are undefined. If null, this process has them
Evaluation evaluate(const Model& model, data::Loader& loader, const Recipe& recipe, const Task& task = {},
                    const comm::Group* ranks = nullptr, CompiledParts* compiled = nullptr,
                    const OutputRank* output_rank = nullptr);

}  // namespace bellows::train
