#include "bellows/train/step/context_ranks.h"

#include <c10/util/Exception.h>

#include <utility>

#include "bellows/train/recipe/context_keys.h"
#include "bellows/train/recipe/pipeline_keys.h"
#include "bellows/train/recipe/recipe_error.h"

namespace bellows::train {

namespace {

/// Throws: RecipeError if ranks cannot divide the sequences of the model
int64_t checked_blocks(const Model& model) {
  const int64_t blocks = sequence_blocks(model);
  check_recipe(
      blocks > 0, "train: mesh has an axis context, but the model \"", model.name(),
      "\" cannot divide its sequences. gpt, bert and distilbert support it. Remove the axis context, or choose "
      "one of these models.");
  return blocks;
}

parallel::ContextOptions options_of(const Job& job, const TensorRanks* tensor) {
  parallel::ContextOptions options{.method = context_method(job.recipe)};
  if (tensor) options.tensor = tensor->layers();
  return options;
}

}  // namespace

int64_t sequence_blocks(const Model& model) {
  try {
    const auto parts = static_cast<int64_t>(models::model_parts(model).parts.size());
    const int64_t blocks = models::run_blocks_by(model, nullptr);
    return parts == blocks + 2 ? blocks : 0;  // with embeddings and head
  } catch (const c10::ValueError&) {
    return 0;
  }
}

void ContextRanks::check(const Job& job) {
  checked_blocks(job.model);
}

ContextRanks::ContextRanks(const Job& job, const comm::Group& axis, const TensorRanks* tensor)
    : model_(job.model),
      blocks_(checked_blocks(model_)),
      in_stages_(pipeline_ranks(job.recipe) > 1),
      context_(axis, options_of(job, tensor)) {
  models::run_blocks_by(model_, divided(tensor ? tensor->sequence_blocks() : nullptr));
}

ContextRanks::~ContextRanks() {
  models::run_blocks_by(model_, nullptr);
}

models::RunBlock ContextRanks::divided(models::RunBlock run) const {
  if (in_stages_) return context_.stage_blocks(run);
  return context_.blocks(blocks_, {.gather = true, .run = std::move(run)});
}

}  // namespace bellows::train
