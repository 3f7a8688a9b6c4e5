#include "cli/tables/model_table.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bellows/core/stats.h"
#include "cli/json_text.h"
#include "cli/terminal.h"

namespace bellows::cli {

namespace {

using nlohmann::ordered_json;
using train::ModelEvaluation;

/// Params: text – the value of a column
///         note – the comparison of the last column with the first one
template <class Text>
std::string model_row(const std::vector<ModelColumn>& columns, const std::string& name, Text text,
                      const std::string& note = "") {
  std::string line = pad_right(name, 10);
  for (const ModelColumn& column : columns) line += pad_left(text(column), 12);
  return line + (note.empty() ? "" : "  " + note) + "\n";
}

}  // namespace

std::string model_table(const std::vector<ModelColumn>& columns) {
  const ModelEvaluation &first = columns.front().evaluation, &last = columns.back().evaluation;
  std::string text = model_row(columns, "", [](const ModelColumn& one) { return one.title; });
  if (std::isfinite(first.evaluation.accuracy)) {
    text += model_row(
        columns, "accuracy",
        [](const ModelColumn& one) { return number("%.2f %%", 100 * one.evaluation.evaluation.accuracy); },
        number("%+.2f points", 100 * (last.evaluation.accuracy - first.evaluation.accuracy)));
  }
  text +=
      model_row(columns, "loss", [](const ModelColumn& one) { return number("%.4f", one.evaluation.evaluation.loss); });
  text += model_row(
      columns, "latency",
      [](const ModelColumn& one) { return number("%.2f ms", 1e3 * one.evaluation.latency_median_s); },
      number("%.2f× as fast", first.latency_median_s / last.latency_median_s));
  text += model_row(
      columns, "size",
      [](const ModelColumn& one) { return format_bytes(static_cast<double>(one.evaluation.weight_bytes)); },
      share_of(last.weight_bytes, std::max<int64_t>(1, first.weight_bytes)));
  if (columns.front().parameters == 0) return text;
  return text + model_row(
                    columns, "parameters", [](const ModelColumn& one) { return std::to_string(one.parameters); },
                    share_of(columns.back().parameters, columns.front().parameters));
}

ordered_json evaluation_json(const ModelEvaluation& evaluation) {
  return {{"loss", number_or_null<ordered_json>(evaluation.evaluation.loss)},
          {"accuracy", number_or_null<ordered_json>(evaluation.evaluation.accuracy)},
          {"latency_median_s", number_or_null<ordered_json>(evaluation.latency_median_s)},
          {"latency_p90_s", number_or_null<ordered_json>(evaluation.latency_p90_s)},
          {"batch_size", evaluation.batch_size},
          {"samples", evaluation.evaluation.samples},
          {"weight_bytes", evaluation.weight_bytes}};
}

}  // namespace bellows::cli
