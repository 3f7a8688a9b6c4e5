#include "cli/plan_text.h"

#include <c10/util/irange.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "bellows/core/stats.h"
#include "bellows/plan/depth_extrapolation.h"
#include "cli/json_text.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using train::MemoryPlan;
using Kind = inspect::TensorKind;

std::string size_of(int64_t bytes) {
  return (bytes < 0 ? "-" : "") + format_bytes(static_cast<double>(std::abs(bytes)));
}

std::string size_words(const train::StepSize& size) {
  return std::to_string(size.batch) + " × " + std::to_string(size.length);
}

std::string row(std::string_view name, int64_t bytes, int64_t whole) {
  return "  " + pad_right(name, 46) + pad_left(size_of(bytes), 14) + pad_left(share_of(bytes, whole), 11) + "\n";
}

/// The model of the dry run.
std::string model_words(const MemoryPlan& plan) {
  const models::ModelSize &full = plan.model_size, &little = plan.small_model_size;
  std::string less;
  const auto add = [&less](int64_t few, int64_t all, const char* what) {
    if (few < all) less += c10::str(less.empty() ? "" : ", ", few, " of ", all, what);
  };
  add(little.layers, full.layers, " layers");
  add(little.heads, full.heads, " heads");
  add(little.inner, full.inner, " inner features");
  add(little.words, full.words, " tokens of the vocabulary");
  add(little.positions, full.positions, " positions");
  return less.empty() ? "with the full model. No batch of full size was allocated."
                      : "with " + less + ". No tensor of full size was allocated.";
}

std::string heading(const MemoryPlan& plan) {
  std::string small;
  for (const train::StepSize& size : plan.rehearsed) small += (small.empty() ? "" : ", ") + size_words(size);
  const std::string precision =
      plan.recipe.precision == "fp32" ? "fp32" : plan.recipe.precision + " " + plan.recipe.amp_level;
  const std::string ranks = plan.ranks > 1 ? c10::str(" on each of ", plan.ranks, " ranks") : "";
  std::string text = wrapped(c10::str(plan.recipe.model, ": batch × length ", size_words(plan.size), ranks, ", ",
                                      plan.recipe.optimizer, ", ", precision, ", ", plan.parameters, " parameters"));
  return text + wrapped("Predicted from a dry run of " + small + " on this CPU, " + model_words(plan)) + "\n";
}

/// Operator and module of the tensor whose allocation reached the peak.
std::string place_of_peak(const MemoryPlan& plan) {
  for (const inspect::TensorLife& tensor : plan.step.tensors) {
    if (tensor.born != plan.peak.event || tensor.born < 0) continue;
    const std::string place = tensor.op + (tensor.module.empty() ? "" : " in " + tensor.module);
    return " (" + tensor.phase + (tensor.phase.empty() || place.empty() ? "" : ", ") + place + ")";
  }
  return "";
}

std::string anatomy(const MemoryPlan& plan) {
  const int64_t peak = plan.peak_bytes();
  std::string text = wrapped("Memory at the peak" + place_of_peak(plan) + ":");
  for (const auto i : c10::irange(inspect::tensor_kinds)) {
    const auto kind = static_cast<Kind>(i);
    if (plan.peak.of(kind) > 0) text += row(inspect::to_string(kind), plan.peak.of(kind), peak);
  }
  if (plan.saved_by_sharding > 0) text += row("held by the other ranks", -plan.saved_by_sharding, peak);
  if (plan.communication > 0) text += row("communication buffers", plan.communication, peak);
  text += row("predicted peak", peak, peak);
  if (plan.waiting > 0) {
    text += wrapped(c10::str("In addition, the loader needs ", size_of(plan.waiting), " for ", plan.recipe.prefetch,
                             " prefetched batches."));
  }
  return text + "\n";
}

/// Equal except for the heap's rounding.
bool alike(int64_t a, int64_t b) {
  return std::abs(a - b) <= std::max(a, b) / 100;
}

/// One row for repeated modules that save the same: "encoder.layer.0", "encoder.layer.1" …
std::string activations(const MemoryPlan& plan) {
  struct Block {
    std::string first, last;
    int64_t bytes = 0, count = 1;
  };
  std::vector<Block> blocks;
  int64_t all = 0;
  for (const train::ModuleBytes& module : plan.activations) {
    all += module.bytes;
    std::string name = train::repeated_block(module.module);
    if (name.empty()) name = module.module.substr(0, module.module.find('.'));
    const auto known = std::find_if(blocks.begin(), blocks.end(), [&](const Block& b) { return b.first == name; });
    if (known == blocks.end()) {
      blocks.push_back({name, name, module.bytes});
    } else {
      known->bytes += module.bytes;
    }
  }
  std::vector<Block> rows;
  for (const Block& block : blocks) {
    const auto stem = [](const std::string& name) { return name.substr(0, name.rfind('.')); };
    const bool repeats = !rows.empty() && alike(rows.back().bytes, block.bytes * rows.back().count) &&
                         stem(rows.back().first) == stem(block.first) && block.first.find('.') != std::string::npos;
    if (repeats) {
      rows.back().last = block.first;
      rows.back().bytes += block.bytes;
      ++rows.back().count;
    } else {
      rows.push_back(block);
    }
  }
  std::string text = "Activations saved for backward, by module:\n";
  for (const Block& block : rows) {
    std::string name = block.first.empty() ? "(the model itself)" : block.first;
    if (block.count > 1)
      name += " to " + block.last.substr(block.last.rfind('.') + 1) + c10::str(" (", block.count, " equal)");
    text += row(name, block.bytes, all);
  }
  return text + row("total", all, all) + "\n";
}

/// The first column of a table. A long name takes several lines; the numbers follow the last one.
std::string name_column(const std::string& name, size_t width) {
  std::string text;
  const std::vector<std::string> lines = wrap(name, width);
  for (size_t i = 0; i + 1 < lines.size(); ++i) text += "  " + lines[i] + "\n";
  return text + "  " + pad_right(lines.back(), width);
}

std::string technique_row(const train::PredictedTechnique& technique, int64_t peak) {
  const double change = 100.0 * static_cast<double>(technique.peak_bytes - peak) / static_cast<double>(peak);
  return name_column(technique.name, 21) + pad_left(size_of(technique.peak_bytes), 11) +
         pad_left(number("%+.1f %%", change), 10) + pad_left(number("%.2f×", technique.time_factor), 7) + "  " +
         technique.cost + "\n";
}

std::string technique_table(const PlanReport& report) {
  std::string text = "Predicted effect of each technique alone:\n" + pad_left("peak", 34) + pad_left("change", 10) +
                     pad_left("time", 7) + "  trade-off\n";
  const int64_t peak = report.plan.peak_bytes();
  for (const train::PredictedTechnique& technique : report.techniques) text += technique_row(technique, peak);
  return text + "\n";
}

std::string strategy_row(const train::StrategyRow& row, const train::StrategyChoice& choice) {
  std::string text = name_column(row.title(), 22) + pad_left(size_of(row.bytes_per_rank), 11) +
                     pad_left(row.fits ? "yes" : "no", 6) + pad_left(size_of(row.bytes_sent), 13);
  if (choice.bytes_per_second > 0) text += pad_left(format_seconds(row.exchange_seconds), 12);
  if (row.compute_seconds > 0) text += pad_left(format_seconds(row.compute_seconds), 12);
  return text + "\n";
}

/// DDP, ZeRO, and axes that divide the model or sequences. ZeRO-3 with techniques is shown only if the others do not fit.
std::string strategy_table(const train::StrategyChoice& choice, bool measured_link) {
  constexpr size_t plain_rows = 4;
  std::string text =
      c10::str("Strategies for ", choice.ranks, " ranks with ", size_of(choice.capacity), " of memory each:\n",
               pad_left("per rank", 35), pad_left("fits", 6), pad_left("sent/step", 13));
  if (choice.bytes_per_second > 0) text += pad_left("exchange", 12);
  if (choice.rows.front().compute_seconds > 0) text += pad_left("compute", 12);
  text += "\n";
  const size_t shown = choice.chosen && *choice.chosen < plain_rows ? plain_rows : choice.rows.size();
  for (const auto i : c10::irange(choice.rows.size())) {
    if (i < shown || !choice.rows[i].mesh.empty()) text += strategy_row(choice.rows[i], choice);
  }
  for (const train::StrategyRow& row : choice.rows) {
    if (!row.needs.empty()) text += wrapped(row.title() + " is predicted only with " + row.needs + " in the recipe.");
  }
  if (choice.bytes_per_second > 0) {
    const std::string bandwidth = number("%.3g GB/s", choice.bytes_per_second / 1e9);
    text += wrapped(measured_link ? c10::str("Each rank sends ", bandwidth, ", measured between ", choice.ranks,
                                             " ranks on this machine.")
                                  : "Each rank sends " + bandwidth + ", as set by --link-gbps.");
  }
  const std::string title = choice.chosen ? choice.rows[*choice.chosen].title() : "none";
  return text + wrapped("Strategy: " + title + ". " + choice.reason) + "\n";
}

nlohmann::ordered_json strategy_json(const train::StrategyChoice& choice, bool measured_link) {
  using Json = nlohmann::ordered_json;
  const auto number_or_null = [](double value) { return value > 0 ? Json(value) : Json(nullptr); };
  Json rows = Json::array();
  for (const train::StrategyRow& row : choice.rows) {
    rows.push_back({{"title", row.title()},
                    {"data_parallel", row.data_parallel},
                    {"mesh", row.mesh},
                    {"techniques", row.techniques},
                    {"needs", row.needs},
                    {"bytes_per_rank", row.bytes_per_rank},
                    {"fits", row.fits},
                    {"bytes_sent_per_step", row.bytes_sent},
                    {"exchange_seconds", number_or_null(row.exchange_seconds)},
                    {"compute_seconds", number_or_null(row.compute_seconds)}});
  }
  Json json = {{"ranks", choice.ranks}, {"memory_bytes_per_rank", choice.capacity}};
  json["link"] = {{"bytes_per_second", number_or_null(choice.bytes_per_second)}, {"measured", measured_link}};
  json["choice"] = choice.chosen ? Json(choice.rows[*choice.chosen].title()) : Json(nullptr);
  json["data_parallel"] = choice.chosen ? Json(choice.rows[*choice.chosen].data_parallel) : Json(nullptr);
  json["mesh"] = choice.chosen ? Json(choice.rows[*choice.chosen].mesh) : Json(nullptr);
  json["reason"] = choice.reason;
  json["needed_ranks"] = choice.needed_ranks > 0 ? Json(choice.needed_ranks) : Json(nullptr);
  json["rows"] = std::move(rows);
  return json;
}

double cost_per_sample(const PlanReport& report) {
  return report.price_per_hour / 3600 * report.situation.step_seconds /
         static_cast<double>(report.plan.size.batch * report.timed_batches);
}

/// The measures and the strategy of a decision.
std::string recommendation(const PlanReport& report) {
  const train::Decision& decision = report.decision;
  const std::string measures = train::to_string(decision.measures), &strategy = decision.strategy;
  if (!decision.fits) return "no combination fits, not even " + measures + ".";
  std::string text = measures == "nothing" ? "keep the recipe unchanged" : "use " + measures;
  if (strategy == "alone") text += ", on a single device";
  if (strategy.starts_with("ddp")) text += c10::str(", with DDP on ", report.situation.ranks, " ranks");
  if (strategy == "ddp with a hook") text += " and compressed gradients";
  return text + ".";
}

std::string verdict(const PlanReport& report) {
  std::string text = wrapped("Recommendation: " + recommendation(report));
  for (const std::string& reason : report.decision.reasons) text += wrapped(reason, "  ");
  const train::Situation& situation = report.situation;
  text += wrapped(c10::str(report.measured_step ? "A step takes " : "A step takes about ",
                           format_seconds(situation.step_seconds),
                           report.measured_step ? "." : " on this CPU, estimated from the dry run."));
  if (report.price_per_hour > 0) {
    text += wrapped(c10::str("At ", number("%g", report.price_per_hour), " per device-hour, a million samples cost ",
                             number("%.3g", 1e6 * cost_per_sample(report)), "."));
  }
  for (const train::UnfittedTensor& tensor : report.plan.unfitted) {
    text += wrapped(c10::str("The sizes of the tensors of ", tensor.op.empty() ? "the loop" : tensor.op,
                             tensor.module.empty() ? "" : " in ", tensor.module,
                             " do not follow a simple formula, so their predicted size of ", size_of(tensor.bytes),
                             " is a guess."));
  }
  return text;
}

std::string machine_row(const train::MachineCost& row) {
  const auto cell = [&](const std::string& value, size_t width) {
    return pad_left(row.has_precision ? value : "-", width);
  };
  const auto money = [](double amount) { return amount > 0 ? number("%.3g", amount) : "-"; };
  return name_column(row.machine.name, 22) + pad_left(row.fits ? "yes" : "no", 5) +
         cell(format_seconds(row.best_seconds), 10) + cell(format_seconds(row.seconds), 10) +
         cell(number("%.3g", 1e6 * row.per_sample), 10) + cell(money(row.per_epoch), 10) +
         cell(money(row.to_target), 10) + "\n";
}

std::string machine_table(const PlanReport& report) {
  const train::MachineComparison& machines = *report.machines;
  const train::Recipe& recipe = report.plan.recipe;
  std::string text =
      "\n" +
      wrapped("Predicted time of a step, and cost" + (machines.currency.empty() ? "" : " in " + machines.currency) +
              " of a million samples, of an epoch, and of " + std::to_string(report.epochs) + " epochs:") +
      pad_left("fits", 29) + pad_left("at best", 10) + pad_left("expected", 10) + pad_left("million", 10) +
      pad_left("epoch", 10) + pad_left("target", 10) + "\n";
  for (const train::MachineCost& row : machines.rows) text += machine_row(row);
  text += wrapped(machines.cheapest
                      ? "Cheapest machine: " + machines.rows[*machines.cheapest].machine.name + "."
                      : "The step fits into no machine of the list that has a rate of " + recipe.precision + ".");
  text += wrapped(c10::str("This machine reaches ", number("%.0f", 100 * machines.share), " % of its measured roofline",
                           report.measured_step ? "" : ", with a step time that is only an estimate (--step-ms)",
                           ". The expected time assumes the same share on each machine. This assumption is not "
                           "verified: another machine can need several times the expected time, or a fraction of it."));
  if (report.epoch_samples == 0)
    text += wrapped("The size of an epoch is unknown. Set the recipe's data, or pass --epoch-samples.");
  return text;
}

nlohmann::ordered_json machines_json(const PlanReport& report) {
  using Json = nlohmann::ordered_json;
  const train::MachineComparison& machines = *report.machines;
  const auto known = [](bool is_known, double value) { return is_known ? Json(value) : Json(nullptr); };
  Json rows = Json::array();
  for (const train::MachineCost& row : machines.rows) {
    const bool times = row.has_precision, epochs = times && report.epoch_samples > 0;
    rows.push_back({{"name", row.machine.name},
                    {"price_per_hour", row.machine.price_per_hour},
                    {"fits", row.fits},
                    {"best_step_seconds", known(times, row.best_seconds)},
                    {"step_seconds", known(times, row.seconds)},
                    {"cost_per_sample", known(times, row.per_sample)},
                    {"cost_per_epoch", known(epochs, row.per_epoch)},
                    {"cost_to_target", known(epochs, row.to_target)}});
  }
  Json json = {{"currency", machines.currency}, {"roofline_share", machines.share}};
  json["epoch_samples"] = report.epoch_samples > 0 ? Json(report.epoch_samples) : Json(nullptr);
  json["epochs"] = report.epochs;
  json["cheapest"] = machines.cheapest ? Json(machines.rows[*machines.cheapest].machine.name) : Json(nullptr);
  json["rows"] = std::move(rows);
  return json;
}

}  // namespace

std::string plan_text(const PlanReport& report) {
  const std::string strategies = report.strategy ? strategy_table(*report.strategy, report.measured_link) : "";
  return heading(report.plan) + anatomy(report.plan) + activations(report.plan) + technique_table(report) + strategies +
         verdict(report) + (report.machines ? machine_table(report) : "");
}

std::string plan_json(const PlanReport& report) {
  const MemoryPlan& plan = report.plan;
  using Json = nlohmann::ordered_json;
  Json json = {{"model", plan.recipe.model},         {"batch", plan.size.batch * plan.ranks},
               {"length", plan.size.length},         {"ranks", plan.ranks},
               {"optimizer", plan.recipe.optimizer}, {"precision", plan.recipe.precision},
               {"parameters", plan.parameters},      {"predicted_peak_bytes", plan.peak_bytes()}};
  for (const auto i : c10::irange(inspect::tensor_kinds)) {
    const auto kind = static_cast<Kind>(i);
    json["peak"][std::string(inspect::to_string(kind))] = plan.peak.of(kind);
  }
  json["peak"]["communication"] = plan.communication;
  json["peak"]["held by other ranks"] = -plan.saved_by_sharding;
  json["loader_bytes"] = plan.waiting;
  json["activations"] = Json::array();
  for (const auto& module : plan.activations)
    json["activations"].push_back({{"module", module.module}, {"bytes", module.bytes}});
  json["techniques"] = Json::array();
  for (const auto& technique : report.techniques) {
    json["techniques"].push_back({{"name", technique.name},
                                  {"predicted_peak_bytes", technique.peak_bytes},
                                  {"time_factor", technique.time_factor},
                                  {"cost", technique.cost}});
  }
  json["unfitted"] = Json::array();
  for (const auto& tensor : plan.unfitted)
    json["unfitted"].push_back({{"operator", tensor.op}, {"module", tensor.module}, {"bytes", tensor.bytes}});
  json["memory_bytes"] = report.situation.capacity;
  json["decision"] = {{"fits", report.decision.fits},
                      {"do", report.decision.to_string()},
                      {"predicted_peak_bytes", report.decision.peak_bytes},
                      {"reasons", report.decision.reasons}};
  if (report.strategy) json["strategy"] = strategy_json(*report.strategy, report.measured_link);
  json["step_seconds"] = {{"seconds", report.situation.step_seconds}, {"measured", report.measured_step}};
  if (report.price_per_hour > 0) json["cost_per_sample"] = cost_per_sample(report);
  if (report.machines) json["machines"] = machines_json(report);
  return json_text(json);
}

}  // namespace bellows::cli
