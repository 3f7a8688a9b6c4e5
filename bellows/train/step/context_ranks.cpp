#include "bellows/train/step/context_ranks.h"

#include <c10/util/Exception.h>

#include <utility>

#include "bellows/train/recipe/context_keys.h"
#include "bellows/train/recipe/recipe_error.h"

namespace bellows::train {

namespace {

/// The number of blocks of a model whose blocks pass [N, T, width] from one to the next. Other models with blocks, such
/// as residual networks, have other dims.
int64_t sequence_blocks(const Model& model) {
  try {
    models::model_parts(model);
  } catch (const c10::ValueError&) {
    throw RecipeError({__func__, __FILE__, __LINE__},
                      c10::str("train: mesh has an axis context, but the model \"", model.name(),
                               "\" cannot divide its sequences. gpt, bert and distilbert support it. Remove the axis "
                               "context, or choose one of these models."));
  }
  return models::run_blocks_by(model, nullptr);
}

}  // namespace

ContextRanks::ContextRanks(const Job& job, const comm::Group& axis)
    : model_(job.model),
      blocks_(sequence_blocks(model_)),
      context_(axis, parallel::ContextOptions{.method = context_method(job.recipe)}) {
  models::run_blocks_by(model_, divided(nullptr));
}

ContextRanks::~ContextRanks() {
  models::run_blocks_by(model_, nullptr);
}

models::RunBlock ContextRanks::divided(models::RunBlock run) const {
  return context_.blocks(blocks_, {.gather = true, .run = std::move(run)});
}

}  // namespace bellows::train
