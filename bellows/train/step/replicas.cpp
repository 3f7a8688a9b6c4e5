#include "bellows/train/step/replicas.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "bellows/checkpoint/rng.h"
#include "bellows/core/device.h"
#include "bellows/tap/saved_tensor_tap.h"

namespace bellows::train {

struct Replicas::State {
  std::vector<c10::Device> devices;
  std::vector<LossFn> losses;  ///< of the replicas, in order
  std::unique_ptr<parallel::DataParallel> data_parallel;
};

namespace {

/// The recipe's device, and then the other visible devices in turn.
std::vector<c10::Device> replica_devices(const Recipe& recipe) {
  const c10::Device first = parse_device(recipe.device);
  const int64_t visible = first.is_cpu() ? 1 : at::accelerator::deviceCount();
  const int64_t by_default = first.is_cpu() ? 2 : visible;
  const int64_t begin = first.is_cpu() || first.has_index() ? first.index() : at::accelerator::getDeviceIndex();
  std::vector<c10::Device> devices;
  for (const auto i : c10::irange(recipe.replicas > 0 ? recipe.replicas : by_default))
    devices.push_back(first.is_cpu() ? first
                                     : c10::Device(first.type(), static_cast<c10::DeviceIndex>((begin + i) % visible)));
  return devices;
}

data::Batch part_of_batch(const data::Batch& batch, const std::vector<at::Tensor>& tensors, int64_t begin) {
  const int64_t size = tensors.front().size(0);
  NamedTensors named;
  named.reserve(tensors.size());
  for (const auto i : c10::irange(tensors.size())) named.emplace_back(batch.tensors()[i].first, tensors[i]);
  const auto first = batch.ids().begin() + begin;
  data::BatchPlace place = batch.place();
  place.padding = std::clamp<int64_t>(begin + size - (batch.size() - place.padding), 0, size);
  return {std::move(named), std::vector<int64_t>(first, first + size), place};
}

/// Whether the loss is a mean over samples.
bool is_sample_mean(const StepOutput& output) {
  return !output.is_sum && !output.count.defined();
}

/// The loss multiplied by (number of items) / unit, as in GroupMean::weigh().
at::Tensor weighted_part(const StepOutput& output, int64_t samples, const at::Tensor& unit) {
  const auto options = output.loss.options().dtype(at::kDouble);
  at::Tensor count = at::scalar_tensor(output.is_sum ? 1 : samples, options);
  if (!output.is_sum && output.count.defined()) count = output.count.detach().to(options);
  const auto dtype = output.loss.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return output.loss.mul(count.div(unit.to(count.device())).to(dtype));
}

/// Without graph, on another device.
StepOutput detached_output(const StepOutput& output, c10::Device device) {
  StepOutput result(output.loss.detach().to(device));
  if (output.predictions.defined()) result.predictions = output.predictions.detach().to(device);
  if (output.count.defined()) result.count = output.count.detach().to(device);
  result.is_sum = output.is_sum;
  return result;
}

at::Tensor all_predictions(const std::vector<StepOutput>& parts) {
  std::vector<at::Tensor> predictions;
  for (const StepOutput& part : parts) {
    if (!part.predictions.defined()) return {};
    predictions.push_back(part.predictions);
  }
  return at::cat(predictions);
}

}  // namespace

Replicas::Replicas(Job& job) {
  if (job.recipe.data_parallel != "dp") return;
  std::vector<c10::Device> devices = replica_devices(job.recipe);
  job.recipe.replicas = static_cast<int64_t>(devices.size());  // so that a resumed run notices another number
  if (devices.size() == 1) return;
  TORCH_CHECK_VALUE(job.make_replica,
                    "train: data_parallel = dp needs another model for each replica, but this job cannot create one. "
                    "Set Job::make_replica, let make_job() create the job, or set data_parallel: ddp.");
  if (job.recipe.activation_dtype != "full" || !job.recipe.offload_folder.empty())
    tap::install_saved_tensor_taps();  // before several threads run backward
  state_ = std::make_unique<State>(State{.devices = devices, .losses = {job.loss}, .data_parallel = nullptr});
  const auto make = [&] {
    Replica replica = job.make_replica();
    state_->losses.push_back(std::move(replica.loss));
    return replica.model;
  };
  const checkpoint::RngGuard restores_generators;  // the initial weights of replicas are replaced
  state_->data_parallel = std::make_unique<parallel::DataParallel>(job.model, make, std::move(devices));
}

Replicas::~Replicas() = default;

int64_t Replicas::size() const {
  return on() ? static_cast<int64_t>(state_->losses.size()) : 1;
}

StepOutput Replicas::forward_backward(const data::Batch& batch, GroupMean& mean, const ReplicaPass& pass) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : batch.tensors()) tensors.push_back(tensor);
  const auto count = static_cast<size_t>(std::min(size(), batch.size()));
  std::vector<StepOutput> parts(count, StepOutput(at::Tensor()));
  std::vector<int64_t> samples(count);
  const at::Tensor unit = mean.unit_for(batch.size()), all = at::scalar_tensor(batch.size(), at::kDouble);
  const auto loss_of = [&](const Model&, const std::vector<at::Tensor>& part, const parallel::BatchPart& place) {
    const Activations::Forward forward(pass.activations, pass.step,
                                       pass.batch * size() + static_cast<int64_t>(place.replica));
    const data::Batch own = part_of_batch(batch, part, place.begin);
    const StepOutput output = state_->losses[place.replica](own);
    parts[place.replica] = detached_output(output, state_->devices.front());
    samples[place.replica] = own.size();
    return weighted_part(output, own.size(), pass.alone && is_sample_mean(output) ? all : unit);
  };
  const at::Tensor loss = state_->data_parallel->backward(
      tensors, loss_of, {.loss_over = parallel::LossOver::sum, .gradient = pass.gradient});
  const auto means = std::ranges::count_if(parts, is_sample_mean);
  TORCH_CHECK_VALUE(
      means == 0 || means == std::ssize(parts),
      "train: expected a loss function that returns the same kind of loss for all parts of a batch, got a "
      "mean over samples for ",
      means, " of ", parts.size(), " parts.");
  if (pass.alone && means > 0) {
    mean.weigh(StepOutput(loss), batch.size(), /*alone=*/true);
  } else {
    for (const auto i : c10::irange(count)) mean.weigh(parts[i], samples[i], /*alone=*/false);
  }
  return {loss, all_predictions(parts)};
}

std::string Replicas::describe() const {
  return on() ? c10::str("dp: ", size(), " replicas on ", c10::Join(", ", state_->devices)) : "";
}

parallel::ReplicaTraffic Replicas::exchanged() const {
  return on() ? state_->data_parallel->exchanged() : parallel::ReplicaTraffic();
}

}  // namespace bellows::train
