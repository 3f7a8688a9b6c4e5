#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bellows/system/file.h"
#include "bellows/train/inference/prediction.h"
#include "cli/interrupt.h"
#include "cli/json_text.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "cli/trained_options.h"

namespace bellows::cli {

namespace {

using nlohmann::ordered_json;
using train::Prediction;

/// A probability with six decimals.
double rounded(double probability) {
  return std::round(probability * 1e6) / 1e6;
}

/// The shortest number that is equal in fp32, such as 0.1 instead of 0.10000000149011612.
double as_float_text(double value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), static_cast<float>(value)).ptr;
  double shortest = value;
  std::from_chars(text.data(), end, shortest);
  return shortest;
}

/// Writes predictions as JSON Lines, to a file or to standard output.
class PredictionWriter {
 public:
  PredictionWriter(const train::TrainedModel& trained, const PredictArguments& arguments)
      : names_(train::prediction_names(trained)),
        labels_(trained.job.task.loss == train::LossKind::bce),
        top_(arguments.top) {
    if (!arguments.output.empty()) file_.emplace(arguments.output);
  }

  void write(const Prediction& prediction) {
    const std::string line = bellows::json_text(line_of(prediction)) + "\n";
    file_ ? file_->write(line) : print_result(line);
  }
  void finish() {
    if (file_) file_->commit();
  }

 private:
  ordered_json class_of(int64_t number) const {
    const auto index = static_cast<size_t>(number);
    return index < names_.size() ? ordered_json(names_[index]) : ordered_json(number);
  }
  ordered_json line_of(const Prediction& prediction) const {
    ordered_json line;
    if (!prediction.file.empty()) line["file"] = prediction.file;
    if (prediction.index >= 0) line["index"] = prediction.index;
    if (!prediction.error.empty()) {
      line["error"] = prediction.error;
    } else if (!prediction.top.empty()) {
      add_classes(prediction, line);
    } else if (labels_) {
      add_labels(prediction, line);
    } else {
      for (const double value : prediction.values) line["values"].push_back(as_float_text(value));
    }
    return line;
  }
  void add_classes(const Prediction& prediction, ordered_json& line) const {
    line["prediction"] = class_of(prediction.top.front().first);
    line["probability"] = rounded(prediction.top.front().second);
    if (top_ == 0) return;
    for (const auto& [number, probability] : prediction.top)
      line["top"].push_back(ordered_json::array({class_of(number), rounded(probability)}));
  }
  void add_labels(const Prediction& prediction, ordered_json& line) const {
    line["prediction"] = ordered_json::array();
    for (size_t i = 0; i < prediction.values.size(); ++i) {
      if (prediction.values[i] > 0.5) line["prediction"].push_back(class_of(static_cast<int64_t>(i)));
    }
    for (size_t i = 0; i < prediction.values.size(); ++i) {
      if (i < names_.size()) {
        line["probabilities"][names_[i]] = rounded(prediction.values[i]);
      } else {
        line["probabilities"].push_back(rounded(prediction.values[i]));
      }
    }
  }

  std::vector<std::string> names_;
  bool labels_;
  int64_t top_;
  std::optional<AtomicFile> file_;
};

void check_inputs(const PredictArguments& arguments) {
  const bool from_data = !arguments.data.empty() || !arguments.split.empty();
  if (arguments.files.empty() && !from_data)
    throw UsageError("expected inputs. Name FILES, or pass --data or --split.");
  if (!arguments.files.empty() && from_data)
    throw UsageError("FILES cannot be combined with --data or --split. Use one of them.");
}

}  // namespace

int run_predict(const PredictArguments& arguments) {
  check_inputs(arguments);
  if (!arguments.output.empty()) check_output_file(arguments.output);
  const train::Recipe recipe = trained_recipe(arguments);
  const Interrupt interrupt("predictions that were printed remain, and --output is not written");
  const train::TrainedModel trained = load_trained_model(arguments, recipe);
  const train::PredictionInputs inputs = arguments.files.empty()
                                             ? train::open_prediction_data(trained, arguments.data, arguments.split)
                                             : train::open_prediction_files(trained, arguments.files);
  PredictionWriter writer(trained, arguments);
  const train::PredictionCounts counts = train::predict(
      trained, inputs,
      {.batch_size = arguments.batch_size, .top = std::max<int64_t>(1, arguments.top), .compile = arguments.compile},
      [&](const Prediction& prediction) { writer.write(prediction); });
  writer.finish();
  if (counts.failed == 0) return exit_done;
  print_error(c10::str(counts.failed, " of ", counts.failed + counts.predicted,
                       " inputs could not be predicted. The reasons are in the field \"error\" of the output."));
  return exit_failed;
}

}  // namespace bellows::cli
