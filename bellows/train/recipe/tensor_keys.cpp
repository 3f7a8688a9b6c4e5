#include "bellows/train/recipe/tensor_keys.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "bellows/core/error.h"
#include "bellows/train/recipe/rank_keys.h"
#include "bellows/train/task.h"

namespace bellows::train {

namespace {

using parallel::TensorStyle;

TensorStyle::Cut parse_cut(const std::string& name) {
  const std::vector<std::string> names(std::begin(parallel::tensor_cut_names), std::end(parallel::tensor_cut_names));
  const auto found = std::find(names.begin(), names.end(), name);
  TORCH_CHECK_VALUE(found != names.end(), "recipe: tensor_plan: no style is called \"", name,
                    "\". The styles are column, row and vocabulary.", did_you_mean(name, names));
  return static_cast<TensorStyle::Cut>(found - names.begin());
}

/// Parses a style such as "column fused=3 transposed".
TensorStyle parse_style(const std::string& text) {
  std::istringstream words(text);
  std::string word;
  words >> word;
  TensorStyle style{parse_cut(word)};
  while (words >> word) {
    const std::string count = word.starts_with("fused=") ? word.substr(6) : "";
    const char* const end = count.data() + count.size();
    int64_t parts = 0;
    const auto [rest, error] = std::from_chars(count.data(), end, parts);
    const bool fused = error == std::errc() && rest == end && parts > 0;
    TORCH_CHECK_VALUE(fused || word == "transposed", "recipe: tensor_plan: expected `transposed` or `fused=3` after ",
                      "the name of a style, got \"", word, "\".");
    style = fused ? style.fused(parts) : style.stored_transposed();
  }
  return style;
}

std::string style_text(const TensorStyle& style) {
  std::string text = parallel::tensor_cut_names[static_cast<size_t>(style.cut)];
  if (style.parts != 1) text += c10::str(" fused=", style.parts);
  if (style.transposed) text += " transposed";
  return text;
}

/// Returns the setting that does not work with tensor parallelism, with the reason; empty if there is none.
std::string tensor_conflict(const Recipe& recipe) {
  if (const std::string shared = shared_operators_conflict(recipe); !shared.empty()) return shared;
  if (recipe.precision != "fp32" && (recipe.amp_level == "O2" || recipe.amp_level == "O3"))
    return "amp_level = " + recipe.amp_level + " converts the weights of complete layers";
  if (const std::string whole = whole_parameters_conflict(recipe); !whole.empty()) return whole;
  if (recipe.optimizer_state == "int8" || recipe.optimizer_state == "int4")
    return "optimizer_state = " + recipe.optimizer_state + " has blocks that slices do not preserve";
  if (recipe.gradient_compression != "none")
    return "gradient_compression = " + recipe.gradient_compression + " keeps state that checkpoints cannot divide";
  if (recipe.quantize != "none") return "quantize = " + recipe.quantize + " replaces the weights of layers";
  if (!recipe.teacher.empty()) return "teacher = " + recipe.teacher + " is not divided, and needs complete logits";
  return "";
}

}  // namespace

int tensor_ranks(const Recipe& recipe) {
  return axis_size(parse_mesh(recipe.mesh), "tensor");
}

parallel::TensorPlan parse_tensor_plan(const std::string& text) {
  parallel::TensorPlan plan;
  if (text == "auto") return plan;
  for (const std::string& item : split_list(without_braces(text))) {
    const size_t colon = item.rfind(':');
    const size_t end = colon == std::string::npos || colon == 0 ? 0 : item.find_last_not_of(' ', colon - 1) + 1;
    TORCH_CHECK_VALUE(end > 0, "recipe: tensor_plan: expected auto, or patterns with styles such as {\"*.query\": ",
                      "column, \"*.output\": row}, got \"", text, "\".");
    plan.emplace_back(item.substr(0, end), parse_style(item.substr(colon + 1)));
  }
  TORCH_CHECK_VALUE(!plan.empty(), "recipe: tensor_plan: the plan is empty. Set tensor_plan: auto, or list patterns ",
                    "with styles.");
  return plan;
}

std::string tensor_plan_text(const parallel::TensorPlan& plan) {
  std::string text;
  for (const auto& [pattern, style] : plan)
    text += c10::str(text.empty() ? "" : ", ", '"', pattern, "\": ", style_text(style));
  return text;
}

void check_tensor_keys(const Recipe& recipe, const std::string& where) {
  parse_tensor_plan(recipe.tensor_plan);
  const bool on = tensor_ranks(recipe) > 1;
  TORCH_CHECK_VALUE(on || recipe.tensor_plan == "auto", "recipe: ", where,
                    ": tensor_plan works only with an axis tensor in mesh. Set mesh: {tensor: 2}, or remove "
                    "tensor_plan.");
  TORCH_CHECK_VALUE(on || !recipe.sequence_parallel, "recipe: ", where,
                    ": sequence_parallel works only with an axis tensor in mesh. Set mesh: {tensor: 2}, or "
                    "sequence_parallel: false.");
  TORCH_CHECK_VALUE(!recipe.sequence_parallel || recipe.recompute == "none", "recipe: ", where,
                    ": sequence_parallel does not work with recompute = ", recipe.recompute,
                    ", because both run the blocks of the model. Use one of them.");
  if (on) check_axis(recipe, where, "tensor", tensor_conflict(recipe));
}

}  // namespace bellows::train
