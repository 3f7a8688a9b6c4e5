#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "bellows/models/exported/program.h"

namespace bellows::models::exported {

namespace {

constexpr std::array<std::string_view, 3> mode_flags{"train", "training", "use_input_stats"};

/// What the nodes of a graph show about the mode of the export.
struct ModeEvidence {
  bool training = false, evaluation = false;
  std::string random{};  ///< the first dropout without a flag
};

/// A norm without running statistics uses those of the batch in both modes.
bool lacks_running_statistics(const Node& node) {
  const auto& formals = node.op->schema().arguments();
  for (size_t i = 0; i < formals.size(); ++i) {
    if (formals[i].name() != "running_mean") continue;
    const Argument& argument = node.arguments[i];
    return argument.fixed() &&
           (argument.constant.isNone() || (argument.constant.isTensor() && !argument.constant.toTensor().defined()));
  }
  return false;
}

bool has_dropout_module(const std::string& classes) {
  const auto contains = [&](std::string_view word) { return classes.find(word) != std::string::npos; };
  return contains("Dropout") || contains("DropPath") || contains("StochasticDepth");
}

/// Returns whether the operator has a flag of the mode.
bool add_flags(Node& node, ModeEvidence& evidence) {
  const auto& formals = node.op->schema().arguments();
  const bool always_batch = lacks_running_statistics(node);
  bool found = false;
  for (size_t i = 0; i < formals.size(); ++i) {
    const std::string& name = formals[i].name();
    const c10::IValue& value = node.arguments[i].constant;
    if (name == "dropout_p" && node.arguments[i].fixed() && value.isDouble()) {
      found = true;
      if (value.toDouble() > 0) {
        evidence.training = true;
        node.evaluation.emplace_back(i, 0.0);
      }
    }
    const bool is_flag = std::find(mode_flags.begin(), mode_flags.end(), name) != mode_flags.end();
    if (!is_flag || !node.arguments[i].fixed() || !value.isBool()) continue;
    found = true;
    if (always_batch) continue;
    (value.toBool() ? evidence.training : evidence.evaluation) = true;
    if (value.toBool()) node.evaluation.emplace_back(i, false);
  }
  return found;
}

void add_evidence(Node& node, ModeEvidence& evidence) {
  if (!node.op) return;
  node.evaluation.clear();
  const std::string& name = node.op->schema().name();
  if (name == "aten::_native_batch_norm_legit_no_training") evidence.evaluation = true;
  if (add_flags(node, evidence)) return;
  const bool draws = name.starts_with("aten::bernoulli") ||
                     (node.op->hasTag(at::Tag::nondeterministic_seeded) && has_dropout_module(node.module_class));
  if (draws && evidence.random.empty()) evidence.random = node.where;
}

}  // namespace

ModeSupport find_modes(Graph& graph) {
  ModeEvidence evidence;
  for_each_node(graph, [&](Node& node) { add_evidence(node, evidence); });
  ModeSupport modes;
  modes.exported_in_training = evidence.training || !evidence.random.empty() || !evidence.evaluation;
  if (!modes.exported_in_training)
    modes.no_training =
        "the program was exported in evaluation mode, so its dropouts are gone and its batch norms are frozen. Call "
        "model.train() before torch.export.export().";
  if (!evidence.random.empty())
    modes.no_evaluation =
        "the program cannot be switched to evaluation mode, because " + evidence.random +
        " draws random numbers without a flag for training, as stochastic depth does. Export a second "
        "program after model.eval(), and write both with torch.export.pt2_archive.package_pt2 as "
        "exported_programs = {\"train\": …, \"eval\": …}.";
  return modes;
}

}  // namespace bellows::models::exported
