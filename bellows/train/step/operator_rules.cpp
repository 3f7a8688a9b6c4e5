#include "bellows/train/step/operator_rules.h"

#include <optional>
#include <string>

#include "bellows/core/error.h"
#include "bellows/inspect/determinism.h"
#include "bellows/inspect/random_guard.h"
#include "bellows/train/recipe/recipe_error.h"

namespace bellows::train {

namespace {

/// The operator that libtorch refuses in deterministic mode; empty if the error has another cause.
std::string refused_operator(const std::string& message) {
  const size_t end = message.find(" does not have a deterministic implementation");
  if (end == std::string::npos) return "";
  const size_t space = message.find_last_of(" \n", end - 1);
  const size_t begin = space == std::string::npos ? 0 : space + 1;
  return message.substr(begin, end - begin);
}

}  // namespace

void with_operator_rules(const Recipe& recipe, const std::function<void()>& body) {
  std::optional<inspect::RandomGuard> seeds;
  if (recipe.require_seed) seeds.emplace();
  if (!recipe.deterministic) return body();
  const inspect::DeterministicGuard guard;
  try {
    body();
  } catch (const c10::Error& error) {
    const std::string name = refused_operator(user_message(error));
    check_recipe(name.empty(), "train: deterministic = true, but the operator ", name,
                 " has no deterministic kernel on device ", recipe.device,
                 ". Replace the operator in the model or the loss, or set deterministic: false.");
    throw;
  }
}

}  // namespace bellows::train
