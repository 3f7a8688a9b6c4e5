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
  double loss = 0;      ///< mean over the samples, or over the tokens (perplexity is its exponential)
  double accuracy = 0;  ///< share of correct samples, pixels, labels or tokens; NaN: the task predicts numbers
  int64_t samples = 0;  ///< tokens for language models
  double seconds = 0;
  std::vector<std::pair<std::string, double>> metrics{};  ///< metrics of the task, by name
};

/// Evaluates `model` on one epoch of `loader`: in evaluation mode, without gradients, with the recipe's precision. The
/// model's mode is restored; nothing else changes. Batches of packed texts are evaluated on their next tokens.
/// Params: task – the default: one class per sample, `batch["label"]`
///         ranks – ranks whose loaders each have a share of the data; null: this process has all of it
///         compiled – runs the forward passes; null: eager
Evaluation evaluate(const Model& model, data::Loader& loader, const Recipe& recipe, const Task& task = {},
                    const comm::Group* ranks = nullptr, CompiledParts* compiled = nullptr);

}  // namespace bellows::train
