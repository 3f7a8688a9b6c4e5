#include "bellows/train/recipe/context_keys.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include "bellows/parallel/context/sequence_layout.h"
#include "bellows/train/recipe/rank_keys.h"

namespace bellows::train {

namespace {

/// Returns the setting that does not work with context parallelism, with the reason; empty if there is none.
std::string context_conflict(const Recipe& recipe) {
  if (const std::string shared = shared_operators_conflict(recipe); !shared.empty()) return shared;
  if (recipe.quantize != "none") return "quantize = " + recipe.quantize + " observes ranges on complete sequences";
  if (!recipe.teacher.empty()) return "teacher = " + recipe.teacher + " is a second model, which is not divided";
  return "";
}

}  // namespace

int context_ranks(const Recipe& recipe) {
  return axis_size(parse_mesh(recipe.mesh), "context");
}

int64_t context_chunks(const Recipe& recipe) {
  return parallel::SequenceLayout{.ranks = context_ranks(recipe)}.chunks();
}

parallel::ContextMethod context_method(const Recipe& recipe) {
  if (recipe.context_method == "all_to_all") return parallel::ContextMethod::all_to_all;
  return recipe.context_method == "gather" ? parallel::ContextMethod::gather : parallel::ContextMethod::ring;
}

void check_context_keys(const Recipe& recipe, const std::string& where) {
  const bool on = context_ranks(recipe) > 1;
  TORCH_CHECK_VALUE(on || recipe.context_method == "ring", "recipe: ", where,
                    ": context_method = ", recipe.context_method,
                    " works only with an axis context in mesh. Set mesh: {context: 2}, or "
                    "remove context_method.");
  if (on) check_axis(recipe, where, "context", context_conflict(recipe));
}

}  // namespace bellows::train
