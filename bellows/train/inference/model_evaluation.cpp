#include "bellows/train/inference/model_evaluation.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "bellows/core/progress.h"
#include "bellows/core/stats.h"
#include "bellows/core/weight_bytes.h"
#include "bellows/system/stop.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/inference/inference_model.h"
#include "bellows/train/loss.h"
#include "bellows/train/step/batch_placement.h"

namespace bellows::train {

namespace {

/// Samples to evaluate, as they are stored.
struct EvaluatedData {
  data::Dataset dataset;
  std::string name;
};

std::string with_split(const std::string& place, const std::string& split) {
  return split.empty() ? place : place + ", split " + split;
}

EvaluatedData data_of(const ResolvedJob& job, const EvaluationOptions& options) {
  const Recipe& recipe = job.recipe;
  const std::string& place = options.data.empty() ? recipe.data : options.data;
  if (!options.data.empty() || !options.split.empty()) {
    data::Dataset dataset = open_part(job, place, {.split = options.split, .otherwise = "test"});
    return {dataset, with_split(place, dataset.info().split)};
  }
  std::optional<data::Dataset> held_out = held_out_part(job);
  TORCH_CHECK_VALUE(held_out, "evaluate: the recipe has no held-out data. Set `split` or `data`.");
  const DataSplit& split = job.split();
  if (!split.held_out.empty())
    return {*std::move(held_out),
            c10::str(recipe.data, ", ", split.held_out.size(), " of ", split.whole.size(), " samples held out")};
  const std::string name = recipe.eval_data.empty() ? recipe.data : recipe.eval_data;
  return {*held_out, with_split(name, held_out->info().split)};
}

/// Checks that labels of the data have the same meaning as in training.
void check_classes(const ResolvedJob& job, const EvaluatedData& data) {
  const std::vector<std::string>& declared = data.dataset.info().classes;
  if (!job.task.classifies_samples() || declared.empty()) return;
  const auto classes = static_cast<int64_t>(declared.size());
  TORCH_CHECK_VALUE(classes == job.num_classes(), "evaluate: the model predicts ", job.num_classes(), " classes, but ",
                    data.name, " declares ", classes,
                    ". Evaluate on data with the classes of the training data, which is ", job.recipe.data, ".");
  const std::vector<std::string>& trained = job.split().whole.info().classes;
  for (size_t i = 0; i < std::min(trained.size(), declared.size()); ++i) {
    TORCH_CHECK_VALUE(trained[i] == declared[i], "evaluate: class ", i, " is \"", trained[i],
                      "\" in the training data ", job.recipe.data, ", but \"", declared[i], "\" in ", data.name,
                      ". The classes must have the same names in the same order.");
  }
}

/// Times of the forward passes.
struct Latencies {
  std::vector<double> full;  ///< seconds of each full batch
  int64_t batches = 0, batch_size = 0;

  void add(int64_t samples, double seconds) {
    if (batches++ == 0) batch_size = samples;
    if (samples == batch_size) full.push_back(seconds);
  }
  void report(ModelEvaluation& result) const {
    result.batches = batches;
    result.batch_size = batch_size;
    if (full.empty()) return;
    const std::vector<double> steady(full.begin() + (full.size() > 1 ? 1 : 0), full.end());
    result.latency_median_s = median(steady);
    result.latency_p90_s = quantile(steady, 0.9);
  }
};

}  // namespace

namespace {

EvaluatedData open_data(const TrainedModel& trained, const EvaluationOptions& options) {
  TORCH_CHECK_VALUE(
      trained.job.data,
      "evaluate: the recipe has no dataset, which describes the classes. Set the key data in the recipe.");
  EvaluatedData data = data_of(trained.job, options);
  check_classes(trained.job, data);
  return data;
}

data::Dataset batches_of(const TrainedModel& trained, const EvaluatedData& data, const EvaluationOptions& options) {
  const data::Dataset batches =
      evaluation_batches(trained.job, data.dataset).channels_last(trained.job.recipe.channels_last);
  return options.batch_size > 0 ? batches.batch(options.batch_size) : batches;
}

}  // namespace

ModelEvaluation evaluate(const TrainedModel& trained, const EvaluationOptions& options) {
  Recipe recipe = trained.job.recipe;
  const bool compile = options.compile || trained.quantized;
  if (compile) recipe.compile = "none";
  const EvaluatedData data = open_data(trained, options);
  data::Loader loader = batches_of(trained, data, options).loader();
  CompiledParts parts(recipe);
  Latencies latencies;
  Progress progress("evaluate", loader.samples_per_epoch(), "samples");
  const Model model = compile ? compiled_model(trained.model) : trained.model;
  const Model observed = observed_model(model, [&](int64_t samples, double seconds) {
    latencies.add(samples, seconds);
    progress.advance(samples);
  });
  ModelEvaluation result{.evaluation = evaluate(observed, loader, recipe, trained.job.task, nullptr, &parts),
                         .data = data.name,
                         .weight_bytes = weight_bytes(trained.model)};
  progress.finish();
  latencies.report(result);
  const double seconds = result.evaluation.seconds;
  if (seconds > 0) result.samples_per_second = static_cast<double>(result.evaluation.samples) / seconds;
  return result;
}

std::vector<std::vector<at::Tensor>> evaluation_inputs(const TrainedModel& trained, const EvaluationOptions& options,
                                                       int64_t batches) {
  TORCH_CHECK_VALUE(batches > 0, "evaluation_inputs: expected at least 1 batch, got ", batches, ".");
  data::Loader loader = batches_of(trained, open_data(trained, options), options).loader();
  std::vector<std::vector<at::Tensor>> inputs;
  int64_t full = 0;
  loader.start(0);
  while (static_cast<int64_t>(inputs.size()) < batches) {
    throw_if_stopped("reading the evaluation data");
    auto next = loader.next();
    if (!next) break;
    const data::Batch batch = placed(std::move(*next), trained.job.recipe, trained.job.device);
    if (batch.size() == 0 || batch.size() < full) continue;
    full = batch.size();
    inputs.push_back(model_inputs(trained.model, batch));
  }
  TORCH_CHECK_VALUE(!inputs.empty(), "evaluation_inputs: none of the ", loader.size(), " samples could be used.");
  return inputs;
}

}  // namespace bellows::train
