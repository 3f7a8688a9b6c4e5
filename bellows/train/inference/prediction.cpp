#include "bellows/train/inference/prediction.h"

#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "bellows/core/device.h"
#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"
#include "bellows/core/log.h"
#include "bellows/core/progress.h"
#include "bellows/data/order/mix.h"
#include "bellows/train/data/data_assembly.h"
#include "bellows/train/inference/inference_model.h"
#include "bellows/train/job.h"
#include "bellows/train/loss.h"
#include "bellows/train/step/batch_placement.h"

namespace bellows::train {

namespace {

void check_task(const TrainedModel& trained, const PredictionOptions& options) {
  const Task& task = trained.job.task;
  TORCH_CHECK_VALUE(task.loss != LossKind::next_token && !task.per_pixel, "predict: the model \"",
                    trained.job.recipe.model, "\" predicts ", task.per_pixel ? "a class for each pixel" : "tokens",
                    ", but predictions need a model that predicts classes or numbers per sample. Run the model in your "
                    "own program instead.");
  TORCH_CHECK_VALUE(options.top >= 1, "predict: expected top of at least 1, got ", options.top, ".");
  TORCH_CHECK_VALUE(options.batch_size >= 0, "predict: expected a batch_size of at least 1, got ", options.batch_size,
                    ".");
}

/// Rows of numbers on the CPU.
class Rows {
 public:
  explicit Rows(const at::Tensor& values)
      : values_(values.to(at::kCPU, at::kDouble).contiguous()), width_(values.size(1)) {}
  std::span<const double> operator[](int64_t row) const {
    return {values_.const_data_ptr<double>() + row * width_, static_cast<size_t>(width_)};
  }

 private:
  at::Tensor values_;
  int64_t width_;
};

/// Whether all numbers of a row are finite.
bool is_finite(std::span<const double> row) {
  return std::ranges::all_of(row, [](double value) { return std::isfinite(value); });
}

/// Converts the outputs of a batch to predictions.
class OutputReader {
 public:
  OutputReader(const Task& task, int64_t top) : task_(task), top_(top) {}

  std::vector<Prediction> read(at::Tensor output, int64_t samples) const {
    if (output.dim() == 1 && is_regression(task_.loss)) output = output.unsqueeze(1);
    TORCH_CHECK_VALUE(output.dim() == 2 && output.size(0) == samples && output.size(1) > 0,
                      "predict: expected the model to return one row per sample, which is [", samples,
                      ", outputs], got ", output.sizes(), ".");
    output = output.to(at::kFloat);
    std::vector<Prediction> predictions(static_cast<size_t>(samples));
    task_.classifies_samples() ? read_classes(output, predictions) : read_values(output, predictions);
    const Rows raw(output);
    for (int64_t i = 0; i < samples; ++i) {
      if (!is_finite(raw[i])) predictions[static_cast<size_t>(i)] = {.error = "the model returned NaN or infinity."};
    }
    return predictions;
  }

 private:
  void read_classes(const at::Tensor& logits, std::vector<Prediction>& predictions) const {
    // Sorted by logits and stable, so that the first class is that of argmax(), also if probabilities round to 1.
    const auto [sorted, order] = at::sort(logits, /*stable=*/true, /*dim=*/1, /*descending=*/true);
    const Rows probabilities(at::softmax(sorted, 1)), classes(order);
    const int64_t count = std::min(top_, logits.size(1));
    for (size_t i = 0; i < predictions.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      for (size_t k = 0; k < static_cast<size_t>(count); ++k)
        predictions[i].top.emplace_back(static_cast<int64_t>(classes[row][k]), probabilities[row][k]);
    }
  }
  void read_values(const at::Tensor& output, std::vector<Prediction>& predictions) const {
    const Rows values(task_.loss == LossKind::bce ? at::sigmoid(output) : output);
    for (size_t i = 0; i < predictions.size(); ++i) {
      const auto row = values[static_cast<int64_t>(i)];
      predictions[i].values.assign(row.begin(), row.end());
    }
  }

  Task task_;
  int64_t top_;
};

/// Calls the function for each input in order. Files without samples are inserted between the samples of others.
class OrderedOutput {
 public:
  OrderedOutput(const PredictionInputs& inputs, const std::function<void(const Prediction&)>& call)
      : inputs_(inputs), call_(call), progress_("predict", inputs.size(), "inputs") {}

  /// Takes the prediction of the next sample.
  void sample(Prediction prediction) {
    unreadable_files();
    const PredictionInputs::Part& part = inputs_.parts[part_];
    prediction.file = part.file;
    if (part.rows) prediction.index = part.ids.empty() ? row_ : part.ids[static_cast<size_t>(row_)];
    give(prediction);
    if (++row_ == part.size) {
      ++part_;
      row_ = 0;
    }
  }
  /// Reports the files that cannot be opened, up to the next sample or the end.
  void unreadable_files() {
    for (; part_ < inputs_.parts.size() && (!inputs_.parts[part_].error.empty() || inputs_.parts[part_].size == 0);
         ++part_) {
      if (inputs_.parts[part_].size == 0) continue;
      log_warn("predict: ", inputs_.parts[part_].error);
      give({.file = inputs_.parts[part_].file, .error = inputs_.parts[part_].error});
    }
  }
  const PredictionCounts& counts() const { return counts_; }

 private:
  void give(const Prediction& prediction) {
    ++(prediction.error.empty() ? counts_.predicted : counts_.failed);
    call_(prediction);
    progress_.advance(1);
  }

  const PredictionInputs& inputs_;
  const std::function<void(const Prediction&)>& call_;
  Progress progress_;
  PredictionCounts counts_;
  size_t part_ = 0;
  int64_t row_ = 0;
};

/// Runs the model on batches of samples.
class SamplePredictor {
 public:
  SamplePredictor(const TrainedModel& trained, const data::Dataset& samples, const PredictionOptions& options)
      : recipe_(trained.job.recipe),
        device_(trained.job.device),
        policy_(precision_policy(recipe_)),
        model_(observed_model(options.compile || trained.quantized ? compiled_model(trained.model) : trained.model,
                              [](int64_t, double) {})),
        reader_(trained.job.task, options.top),
        // Positions as ids tell which samples a batch lacks.
        batches_(prediction_batches(trained.job, data::Dataset(data::concat({samples.source()}), samples.info()))
                     .channels_last(recipe_.channels_last)) {
    if (options.batch_size > 0) batches_ = batches_.batch(options.batch_size);
  }

  void run(OrderedOutput& output) {
    data::Loader loader = batches_.on_bad_sample(data::OnBadSample::skip).loader();
    int64_t next = 0;
    for (auto batch = first(loader); batch; batch = loader.next()) {
      std::vector<Prediction> predictions = of(*batch);
      for (size_t i = 0; i < predictions.size(); ++i) {
        for (; next < batch->ids()[i]; ++next) output.sample(alone(next));
        output.sample(std::move(predictions[i]));
        ++next;
      }
    }
    constexpr int64_t logged = 3;
    const bool unused = next == 0;  // the loader logs the first bad samples, unless it cannot use any sample
    for (; next < batches_.size(); ++next) {
      Prediction prediction = alone(next);
      if (unused && next < logged && !prediction.error.empty()) log_warn("predict: ", prediction.error);
      output.sample(std::move(prediction));
    }
  }

 private:
  /// The first batch, or nothing if no sample can be used.
  static std::optional<data::Batch> first(data::Loader& loader) {
    try {
      loader.start(0);
    } catch (const c10::ValueError&) {
      return std::nullopt;  // alone() reports the error of each sample
    }
    return loader.next();
  }

  std::vector<Prediction> of(const data::Batch& loaded) const {
    const data::Batch batch = placed(loaded, recipe_, device_);
    const auto precision = make_precision_guard(policy_, device_);
    return reader_.read(train::predict(model_, batch), batch.size());
  }

  /// The prediction of one sample that its batch lacks: usually its error.
  Prediction alone(int64_t position) const {
    data::Loader loader =
        batches_.subset({position}).batch(1).threads(0).on_bad_sample(data::OnBadSample::fail).loader();
    std::optional<data::Batch> batch;
    try {
      batch = loader.next();
    } catch (const c10::ValueError& error) {
      return {.error = user_message(error)};
    }
    return batch ? of(*batch).front() : Prediction{.error = "the sample cannot be read."};
  }

  const Recipe& recipe_;
  c10::Device device_;
  amp::Policy policy_;
  Model model_;
  OutputReader reader_;
  data::Dataset batches_;
};

}  // namespace

PredictionCounts predict(const TrainedModel& trained, const PredictionInputs& inputs, const PredictionOptions& options,
                         const std::function<void(const Prediction&)>& on_prediction) {
  const auto begin = std::chrono::steady_clock::now();
  check_task(trained, options);
  const EvalMode eval_mode(trained.model);
  const inference_mode no_graph;
  OrderedOutput output(inputs, on_prediction);
  if (inputs.samples && inputs.samples->size() > 0) SamplePredictor(trained, *inputs.samples, options).run(output);
  output.unreadable_files();
  PredictionCounts counts = output.counts();
  counts.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return counts;
}

std::vector<std::string> prediction_names(const TrainedModel& trained) {
  const ResolvedJob& job = trained.job;
  if (job.task.loss == LossKind::bce) {
    std::vector<std::string> labels = split_list(job.recipe.target);  // one array may contain all labels
    return static_cast<int64_t>(labels.size()) == job.task.outputs ? labels : std::vector<std::string>();
  }
  if (!job.task.classifies_samples() || !job.data) return {};
  const DataSplit& split = job.split();
  return split.named_labels || !split.whole.info().classes.empty() ? split.classes : std::vector<std::string>();
}

}  // namespace bellows::train
