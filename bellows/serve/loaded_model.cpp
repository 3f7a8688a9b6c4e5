#include "bellows/serve/loaded_model.h"

#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/serve/batch/padding.h"
#include "bellows/serve/ensemble/ensemble.h"
#include "bellows/serve/sequence/sequence_scheduler.h"
#include "bellows/serve/tensor_types.h"

namespace bellows::serve {

namespace {

LoadedFile load_with_runtime(const std::string& backend, const std::string& path, const runtime::LoadOptions& options) {
  if (!backend.empty()) return {runtime::backend(backend).load(path, options), backend};
  std::string missing;
  for (const runtime::InferenceBackend* one : runtime::backends()) {
    if (!one->accepts(path)) continue;
    if (one->missing().empty()) return {one->load(path, options), one->name()};
    missing += " " + one->name() + ": " + one->missing();
  }
  TORCH_CHECK_VALUE(
      !missing.empty(), path,
      ": no back end reads this file. Expected a TorchScript file, a program of torch.export, a compiled program, "
      "a package of AOTInductor, or a file of ONNX or OpenVINO.");
  TORCH_CHECK_VALUE(false, path, ": the back ends that read this file are missing.", missing);
}

at::Tensor warmup_tensor(const WarmupInput& input, int64_t batch_size) {
  std::vector<int64_t> sizes = input.dims;
  if (batch_size > 0) sizes.insert(sizes.begin(), batch_size);
  if (!input.random) return at::zeros(sizes, input.dtype);
  if (at::isFloatingType(input.dtype)) return at::rand(sizes, at::kFloat).to(input.dtype);
  return at::randint(0, 2, sizes, at::kLong).to(input.dtype);
}

}  // namespace

ModelLoader runtime_loader() {
  return load_with_runtime;
}

LoadedModel::LoadedModel(ModelConfig config, const std::string& path, const std::string& version,
                         const ModelLoader& loader, const LoadModelOptions& options,
                         std::shared_ptr<ModelStatistics> statistics)
    : config_(std::move(config)), statistics_(std::move(statistics)) {
  std::vector<RunModel> instances;
  std::vector<TensorSpec> inputs;
  runtime::LoadOptions load = options.load;
  load.batch_invariant = config_.batch_invariant;
  for (int64_t i = 0; i < config_.instances; ++i) {
    LoadedFile file = loader(config_.backend, path, load);
    config_.backend = file.backend;
    std::shared_ptr<runtime::InferenceModel> model = std::move(file.model);
    if (i == 0) inputs = complete(*model);
    instances.push_back(instance(std::move(model)));
  }
  set_signature(version);
  if (config_.batch_invariant) {
    TORCH_CHECK_VALUE(
        config_.backend != "compiled",
        "batch_invariant: the back end \"compiled\" can compile a size again, with other bits. Export the "
        "model as a compiled program (bellows export --format bellows).");
    invariance_ = std::make_unique<BatchInvariance>(inputs);
    for (RunModel& run : instances) run = invariance_->instance(std::move(run));
  }
  for (const RunModel& run : instances) warm_up(run, inputs);
  runner_ = runner(std::move(instances), inputs, options.max_queue_size);
}

LoadedModel::LoadedModel(ModelConfig config, const std::string& version, FindModel find,
                         std::shared_ptr<ModelStatistics> statistics)
    : config_(std::move(config)), statistics_(std::move(statistics)) {
  config_.platform = "ensemble";
  set_signature(version);
  runner_ = make_ensemble(signature_, config_.ensemble, std::move(find), statistics_);
}

void LoadedModel::set_signature(const std::string& version) {
  auto signature = std::make_shared<ModelSignature>();
  signature->name = config_.name;
  signature->version = version;
  signature->platform = config_.platform.empty() ? config_.backend : config_.platform;
  signature->max_batch_size = config_.max_batch_size;
  signature->inputs = config_.inputs;
  signature->outputs = config_.outputs;
  signature_ = std::move(signature);
}

std::vector<TensorSpec> LoadedModel::complete(const runtime::InferenceModel& model) {
  std::vector<TensorSpec> stated;
  if (config_.text) {
    stated = std::exchange(config_.inputs, {});
    for (const runtime::TensorInfo& info : model.inputs()) {
      // TorchScript files do not state dtypes and sizes. The tokenizer determines them.
      const bool unknown = info.dtype == c10::ScalarType::Undefined;
      if (unknown) config_.inputs.push_back({.name = info.name, .dtype = c10::kLong, .dims = {-1}});
    }
  }
  order_ = complete_model_config(config_, model);
  std::vector<TensorSpec> inputs = config_.inputs;
  if (config_.text) {
    config_.inputs = {text_input(stated)};
    text_ = std::make_unique<TextStage>(*config_.text, inputs);
  }
  for (const std::vector<TensorSpec>* list : {&std::as_const(inputs), &std::as_const(config_.outputs)}) {
    for (const TensorSpec& spec : *list)
      TORCH_CHECK_VALUE(spec.dtype != bytes_dtype, "\"", spec.name,
                        "\": TYPE_STRING is possible only for inputs of models with the parameter tokenizer, and in "
                        "ensembles.");
  }
  return inputs;
}

std::unique_ptr<RequestRunner> LoadedModel::runner(std::vector<RunModel> instances,
                                                   const std::vector<TensorSpec>& inputs,
                                                   uint64_t max_queue_size) const {
  if (config_.sequences)
    return std::make_unique<SequenceScheduler>(std::move(instances),
                                               SequenceOptions{.max_batch_size = config_.max_batch_size,
                                                               .sequences = *config_.sequences,
                                                               .outputs = config_.outputs.size(),
                                                               .max_queue_size = max_queue_size,
                                                               .model = config_.name},
                                               statistics_);
  QueueOptions queue{.max_batch_size = config_.max_batch_size,
                     .dynamic_batching = config_.dynamic_batching,
                     .max_queue_size = max_queue_size};
  std::optional<PadOptions> padding = config_.padding;
  if (!padding && text_ && text_->can_pad() && !text_->fixed_length() && !config_.batch_invariant)
    padding.emplace();  // the token 0 and the mask 0 pad texts
  if (padding) queue.padding = std::make_shared<Padding>(*padding, inputs, config_.outputs);
  return std::make_unique<Scheduler>(std::move(instances), std::move(queue), statistics_);
}

Scheduler::Submitted LoadedModel::submit(PendingRequest& request) {
  if (request.sequence.id != 0 && !config_.sequences)
    throw RequestError(status_unsupported, "model \"" + config_.name +
                                               "\" does not support sequences. Its configuration has no "
                                               "sequence_batching, but the request has the parameter sequence_id.");
  if (!text_) return runner_->submit(request);
  if (request.bytes.empty() || !request.bytes[0])
    throw RequestError(status_bad_request, "model \"" + config_.name + "\" expects texts in a BYTES tensor.");
  std::vector<at::Tensor> tokens = text_->inputs_of(*request.bytes[0]);
  std::swap(tokens, request.inputs);
  const Scheduler::Submitted submitted = runner_->submit(request);
  if (submitted != Scheduler::Submitted::queued) std::swap(tokens, request.inputs);
  return submitted;
}

void LoadedModel::drain() {
  pins_.drain();
  runner_->drain();
}

/// The scheduler uses the order of the configuration, and the back end the order of the file.
RunModel LoadedModel::instance(std::shared_ptr<runtime::InferenceModel> model) const {
  return [model = std::move(model), order = order_](std::span<const at::Tensor> inputs) {
    std::vector<at::Tensor> ordered;
    for (const size_t index : order.inputs) ordered.push_back(inputs[index]);
    std::vector<at::Tensor> results = model->run(ordered), outputs;
    for (const size_t index : order.outputs) {
      TORCH_CHECK(index < results.size(), "the model returned ", results.size(), " outputs, expected at least ",
                  index + 1, ".");
      outputs.push_back(results[index]);
    }
    return outputs;
  };
}

void LoadedModel::warm_up(const RunModel& run, const std::vector<TensorSpec>& specs) const {
  for (const Warmup& warmup : config_.warmups) {
    const bool batched = config_.max_batch_size > 0;
    const int64_t batch_size = batched ? std::clamp<int64_t>(warmup.batch_size, 1, config_.max_batch_size) : 0;
    std::vector<at::Tensor> inputs;
    for (const TensorSpec& spec : specs) {
      const auto found = std::ranges::find(warmup.inputs, spec.name, &WarmupInput::name);
      TORCH_CHECK_VALUE(found != warmup.inputs.end() && found->dtype == spec.dtype, "model_warmup \"", warmup.name,
                        "\": expected the input \"", spec.name, "\" with the data type ", config_type_name(spec.dtype),
                        ".");
      inputs.push_back(warmup_tensor(*found, batch_size));
    }
    try {
      for (int64_t i = 0; i < warmup.count; ++i) run(inputs);
    } catch (const std::exception& error) {
      TORCH_CHECK_VALUE(false, "model_warmup \"", warmup.name, "\" failed: ", user_message(error));
    }
  }
}

}  // namespace bellows::serve
