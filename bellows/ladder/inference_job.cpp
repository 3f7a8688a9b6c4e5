#include "bellows/ladder/inference_job.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "bellows/core/device.h"
#include "bellows/core/grad_mode.h"
#include "bellows/core/weight_bytes.h"
#include "bellows/inspect/memory.h"
#include "bellows/models/registry.h"
#include "bellows/quant/quantize.h"
#include "bellows/system/stop.h"
#include "bellows/train/inference/inference_model.h"
#include "bellows/train/inference/quantization.h"

namespace bellows::train {

namespace {

using Inputs = std::vector<std::vector<at::Tensor>>;

constexpr int64_t most_batches = 4;      // each size of batch is compiled on its own
constexpr int64_t usual_batch_size = 8;  // of examples

/// The number of channels, values or tokens of the model's inputs, as with data.
models::ModelEntry entry_of(const ResolvedJob& job) {
  models::ModelEntry entry = job.model;
  const int64_t width = job.input_width(), length = job.max_length();
  if (width > 0) entry.input_shape[0] = width;
  if (entry.input == models::InputKind::tokens && length > 0)
    entry.input_shape[1] = entry.input_shape[1] > 0 ? std::min(entry.input_shape[1], length) : length;
  return entry;
}

Inputs example_batches(const TrainedModel& trained, const EvaluationOptions& options) {
  const Recipe& recipe = trained.job.recipe;
  const bool images = trained.job.model.input == models::InputKind::image;
  std::vector<at::Tensor> batch =
      models::example_inputs(entry_of(trained.job), options.batch_size > 0 ? options.batch_size : usual_batch_size,
                             images ? recipe.image_size : 0);
  for (at::Tensor& input : batch) {
    input = input.to(trained.job.device);
    if (recipe.channels_last && input.dim() == 4) input = input.contiguous(at::MemoryFormat::ChannelsLast);
  }
  return {std::move(batch)};
}

Inputs inputs_of(const TrainedModel& trained, const EvaluationOptions& options) {
  return trained.job.data ? evaluation_inputs(trained, options, most_batches) : example_batches(trained, options);
}

std::string layers_text(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return c10::str(names.size(), names.size() == 1 ? " layer stays" : " layers stay", " in floating point: ", text);
}

/// Params: remark – receives the layers that stay in floating point
TrainedModel quantized(const TrainedModel& trained, const InferenceSource& source, bool keep_sensitive_layers,
                       std::string& remark) {
  if (keep_sensitive_layers) {
    QuantizationGoal goal{
        .samples = source.calibration_samples, .max_drop = source.max_drop, .evaluation = source.evaluation};
    goal.evaluation.compile = true;
    const QuantizationResult result = quantize(trained, goal);
    if (!result.kept.empty()) remark = layers_text(result.kept);
    return with_quantized(trained, result.quantized);
  }
  const Inputs calibration = trained.job.data ? calibration_inputs(trained, source.calibration_samples)
                                              : example_batches(trained, source.evaluation);
  quant::Options options{.release_weights = true};
  options.trained = trained.trained_layers;  // empty unless the model was trained with `quantize`
  return with_quantized(trained, quant::quantize(trained.model, options, calibration));
}

class InferenceJob final : public LadderJob {
 public:
  /// Records the memory before it creates the first tensor.
  InferenceJob(InferenceSource source, InferenceSettings settings)
      : source_(std::move(source)),
        settings_(std::move(settings)),
        device_(parse_device(settings_.recipe.device)),
        before_(inspect::memory_stats(device_).current_bytes),
        trained_(source_.load(settings_.recipe)) {
    TORCH_CHECK_VALUE(!trained_.quantized, "ladder: ", trained_.weights,
                      " contains a quantized model already. Use the model with its original weights.");
    trained_.model.eval();
    if (settings_.int8) trained_ = quantized(trained_, source_, settings_.keep_sensitive_layers, remark_);
    const int64_t before_inputs = inspect::memory_stats(device_).current_bytes;
    inputs_ = inputs_of(trained_, source_.evaluation);
    input_bytes_ = inspect::memory_stats(device_).current_bytes - before_inputs;
    forward_ = settings_.compile ? compiled_model(trained_.model) : trained_.model;
  }

  int64_t run_steps(int64_t n) override {
    int64_t samples = 0;
    for (int64_t i = 0; i < n; ++i, ++steps_) {
      throw_if_stopped("running the model");
      const std::vector<at::Tensor>& batch = inputs_[static_cast<size_t>(steps_ % steps_per_epoch())];
      run(batch);
      samples += size_of(batch);
    }
    synchronize(device_);
    return samples;
  }

  /// Runs all batches twice: the first calls wait for the compiler.
  bool settle() override {
    if (steps_ < 2 * steps_per_epoch()) run_steps(1);
    return steps_ >= 2 * steps_per_epoch();
  }

  int64_t steps_per_epoch() const override { return static_cast<int64_t>(inputs_.size()); }
  int64_t samples_per_epoch() const override {
    int64_t samples = 0;
    for (const auto& batch : inputs_) samples += size_of(batch);
    return samples;
  }

  double evaluate() override {
    TrainedModel same = trained_;
    same.model = *forward_;  // compiled already
    same.quantized = false;
    return train::evaluate(same, source_.evaluation).evaluation.accuracy;
  }

  int64_t take_peak_bytes() override {
    const int64_t peak = inspect::memory_stats(device_).peak_bytes;
    inspect::reset_peak(device_);
    return std::max<int64_t>(0, peak - before_ - input_bytes_);
  }

  int64_t model_bytes() override { return weight_bytes(trained_.model); }

  /// Loads the model of rung 0 for the comparison, and frees it afterwards.
  double output_difference() override {
    const inference_mode no_graph;
    const TrainedModel start = source_.load(source_.start.recipe);
    start.model.eval();
    const at::Tensor expected = start.model.forward_all(inputs_of(start, source_.evaluation).front()).front();
    const at::Tensor found = forward_->forward_all(inputs_.front()).front();
    const at::Tensor difference = found.to(at::kDouble) - expected.to(at::kDouble);
    return at::linalg_vector_norm(difference).item<double>() /
           std::max(at::linalg_vector_norm(expected.to(at::kDouble)).item<double>(), 1e-30);
  }

  std::string remark() override { return remark_; }

 private:
  static int64_t size_of(const std::vector<at::Tensor>& batch) {
    for (const at::Tensor& input : batch) {
      if (input.defined()) return input.size(0);
    }
    return 0;
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& batch) const {
    std::optional<inference_mode> guard;
    if (settings_.inference_mode) guard.emplace();
    return forward_->forward_all(batch);
  }

  const InferenceSource source_;
  const InferenceSettings settings_;
  const c10::Device device_;
  const int64_t before_;
  TrainedModel trained_;
  std::string remark_;
  Inputs inputs_;
  int64_t input_bytes_ = 0, steps_ = 0;
  std::optional<Model> forward_;
};

}  // namespace

std::unique_ptr<LadderJob> make_inference_job(const InferenceSource& source, const InferenceSettings& settings) {
  return std::make_unique<InferenceJob>(source, settings);
}

}  // namespace bellows::train
