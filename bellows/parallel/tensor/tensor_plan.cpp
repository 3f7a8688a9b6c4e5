#include "bellows/parallel/tensor/tensor_plan.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string_view>

#include "bellows/core/error.h"

namespace bellows::parallel {

namespace {

/// Returns whether `text` matches `pattern`, in which `*` stands for any characters.
bool matches_pattern(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern.front() != '*')
    return !text.empty() && pattern.front() == text.front() && matches_pattern(pattern.substr(1), text.substr(1));
  for (size_t skipped = 0; skipped <= text.size(); ++skipped) {
    if (matches_pattern(pattern.substr(1), text.substr(skipped))) return true;
  }
  return false;
}

std::string module_of(const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? std::string() : parameter.substr(0, dot);
}

bool selects(const std::string& pattern, const std::string& parameter) {
  const std::string module = module_of(parameter);
  return matches_pattern(pattern, parameter) || (!module.empty() && matches_pattern(pattern, module));
}

/// A row of the table of plans. Entries whose pattern matches nothing in a model are left out, because heads differ.
struct KnownPlan {
  std::string marker;  ///< pattern of a parameter that only this kind of model has
  TensorPlan layers, vocabulary_layers;
};

const std::vector<KnownPlan>& known_plans() {
  static const auto* const plans = new std::vector<KnownPlan>{
      {.marker = "*attention.self.query.weight",
       .layers = {{"*attention.self.query", column},
                  {"*attention.self.key", column},
                  {"*attention.self.value", column},
                  {"*.output.dense", row},
                  {"*intermediate.dense", column}},
       .vocabulary_layers = {{"*embeddings.word_embeddings", vocabulary}, {"cls.predictions.bias", vocabulary}}},
      {.marker = "*attention.q_lin.weight",
       .layers = {{"*attention.q_lin", column},
                  {"*attention.k_lin", column},
                  {"*attention.v_lin", column},
                  {"*attention.out_lin", row},
                  {"*ffn.lin1", column},
                  {"*ffn.lin2", row}},
       .vocabulary_layers = {{"*embeddings.word_embeddings", vocabulary}, {"vocab_projector.bias", vocabulary}}},
      {.marker = "*attn.c_attn.weight",
       .layers = {{"*attn.c_attn", column.stored_transposed().fused(3)},
                  {"*attn.c_proj", row.stored_transposed()},
                  {"*mlp.c_fc", column.stored_transposed()},
                  {"*mlp.c_proj", row.stored_transposed()}},
       .vocabulary_layers = {{"*wte", vocabulary}}},
      {.marker = "*self_attn.in_proj_weight",
       .layers = {{"*attn.in_proj_weight", column.fused(3)},
                  {"*attn.in_proj_bias", column.fused(3)},
                  {"*attn.out_proj", row},
                  {"*.linear1", column},
                  {"*.linear2", row}},
       .vocabulary_layers = {}}};
  return *plans;
}

bool any_selected(const std::string& pattern, const NamedTensors& parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const auto& parameter) { return selects(pattern, parameter.first); });
}

/// The names with which a pattern may be compared: of modules and parameters, complete and without the first parts.
std::vector<std::string> suggestions(const NamedTensors& parameters) {
  std::vector<std::string> names;
  for (const auto& [parameter, tensor] : parameters) {
    for (std::string name : {parameter, module_of(parameter)}) {
      for (size_t dot = 0; dot != std::string::npos && !name.empty(); dot = name.find('.')) {
        if (dot > 0) name = name.substr(dot + 1);
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      }
    }
  }
  return names;
}

void check_pattern(const Model& model, const std::string& pattern, const NamedTensors& parameters) {
  const size_t begin = pattern.find_first_not_of("*.");
  TORCH_CHECK_VALUE(
      any_selected(pattern, parameters), "parallelize: the pattern \"", pattern,
      "\" of the plan matches no module and no parameter of model \"", model.name(), "\".",
      did_you_mean(begin == std::string::npos ? pattern : pattern.substr(begin), suggestions(parameters)));
}

/// The dim along which a parameter is divided; -1 if it stays complete.
int64_t dim_of(const TensorStyle& style, const std::string& name, const at::Tensor& parameter) {
  const bool is_row = style.cut == TensorStyle::Cut::row;
  if (parameter.dim() == 1) return is_row ? -1 : 0;
  TORCH_CHECK_VALUE(parameter.dim() == 2, "parallelize: expected a weight with 2 dims, but \"", name, "\" has sizes [",
                    c10::Join(", ", parameter.sizes()), "]. Leave it out of the plan.");
  return is_row != style.transposed ? 1 : 0;
}

void check_divisible(const TensorCut& cut, int ranks) {
  const int64_t size = cut.sizes[static_cast<size_t>(cut.dim)];
  if (cut.style.cut == TensorStyle::Cut::vocabulary) {
    TORCH_CHECK_VALUE(size >= ranks && cut.style.parts == 1 && !cut.style.transposed, "parallelize: \"", cut.name,
                      "\": expected a vocabulary of at least ", ranks,
                      " rows, one per rank, in the layout [rows, "
                      "width] and without fused parts, got ",
                      size, " rows.");
    return;
  }
  TORCH_CHECK_VALUE(cut.style.parts >= 1 && size % (cut.style.parts * ranks) == 0, "parallelize: \"", cut.name,
                    "\" has ", size, " elements along dim ", cut.dim, ", which ", ranks, " ranks and ", cut.style.parts,
                    " fused part(s) do not divide. Use another number of ranks.");
}

/// Adds a parameter that a pattern matches.
void add_cut(std::vector<TensorCut>& cuts, const std::string& name, const at::Tensor& parameter,
             const TensorStyle& style, const std::string& pattern) {
  const int64_t dim = dim_of(style, name, parameter);
  if (dim < 0) return;
  const auto known =
      std::find_if(cuts.begin(), cuts.end(), [&](const TensorCut& cut) { return cut.parameter.is_same(parameter); });
  if (known == cuts.end()) {
    cuts.push_back({name, parameter, style, dim, parameter.sizes().vec()});
    return;
  }
  TORCH_CHECK_VALUE(known->name != name, "parallelize: two patterns of the plan match the parameter \"", name,
                    "\"; the second is \"", pattern, "\". Each parameter needs exactly one style.");
  TORCH_CHECK_VALUE(known->style == style, "parallelize: \"", known->name, "\" and \"", name,
                    "\" are the same tensor, but the plan gives them the styles ", to_string(known->style), " and ",
                    to_string(style), ". Give them the same style.");
}

}  // namespace

std::string to_string(const TensorStyle& style) {
  std::string text = tensor_cut_names[static_cast<size_t>(style.cut)];
  if (style.parts != 1) text += ", " + std::to_string(style.parts) + " parts";
  if (style.transposed) text += ", [in, out]";
  return text;
}

TensorPlan tensor_plan(const Model& model, bool divide_vocabulary) {
  const NamedTensors parameters = model.named_parameters();
  for (const KnownPlan& known : known_plans()) {
    if (!any_selected(known.marker, parameters)) continue;
    TensorPlan plan = known.layers;
    if (divide_vocabulary) plan.insert(plan.end(), known.vocabulary_layers.begin(), known.vocabulary_layers.end());
    std::erase_if(plan, [&](const auto& entry) { return !any_selected(entry.first, parameters); });
    return plan;
  }
  TORCH_CHECK_VALUE(false, "tensor_plan: the parameter names of model \"", model.name(),
                    "\" are not those of bert, distilbert, gpt or encoder_decoder. Write a plan, such as "
                    "{{\"*.query\", column}, {\"*.output\", row}}.");
}

std::vector<std::pair<int64_t, int64_t>> TensorCut::ranges(int rank, int ranks) const {
  const int64_t size = sizes[static_cast<size_t>(dim)];
  if (style.cut == TensorStyle::Cut::vocabulary) {
    const int64_t begin = first_of_rank(size, rank, ranks);
    return {{begin, first_of_rank(size, rank + 1, ranks) - begin}};
  }
  std::vector<std::pair<int64_t, int64_t>> result;
  const int64_t part = size / style.parts, length = part / ranks;
  for (int64_t i = 0; i < style.parts; ++i) result.emplace_back(i * part + rank * length, length);
  return result;
}

std::vector<comm::ShardSpec> TensorCut::boxes(int rank, int ranks) const {
  std::vector<comm::ShardSpec> result;
  for (const auto& [begin, length] : ranges(rank, ranks)) {
    comm::ShardSpec spec = comm::ShardSpec::whole(sizes);
    spec.offset[static_cast<size_t>(dim)] = begin;
    spec.length[static_cast<size_t>(dim)] = length;
    result.push_back(std::move(spec));
  }
  return result;
}

std::vector<TensorCut> find_cuts(const Model& model, const TensorPlan& plan, int ranks) {
  const NamedTensors parameters = model.named_parameters();
  std::vector<TensorCut> cuts;
  for (const auto& [pattern, style] : plan) {
    check_pattern(model, pattern, parameters);
    for (const auto& [name, parameter] : parameters) {
      if (selects(pattern, name)) add_cut(cuts, name, parameter, style, pattern);
    }
  }
  for (const TensorCut& cut : cuts) check_divisible(cut, ranks);
  return cuts;
}

}  // namespace bellows::parallel
