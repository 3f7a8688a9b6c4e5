#include "bellows/parallel/pipeline/stage_runner.h"

#include <ATen/Context.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

#include "bellows/core/seed.h"

namespace bellows::parallel {

namespace {

void call_stage(const StageCall* by, const std::function<void()>& body) {
  if (by && *by) return (*by)(body);
  body();
}

}  // namespace

MicroBatches MicroBatches::divide(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets,
                                  int count, bool copy) {
  int64_t samples = -1;
  for (const auto* tensors : {&inputs, &targets}) {
    for (const at::Tensor& tensor : *tensors) {
      if (!tensor.defined()) continue;
      TORCH_CHECK_VALUE(tensor.dim() >= 1, "pipeline: expected inputs and targets with the samples in dim 0, got a ",
                        "tensor without dims.");
      TORCH_CHECK_VALUE(samples < 0 || tensor.size(0) == samples,
                        "pipeline: expected inputs and targets with the same number of samples in dim 0, got [",
                        c10::Join(", ", tensor.sizes()), "] and ", samples, " samples.");
      samples = tensor.size(0);
    }
  }
  TORCH_CHECK_VALUE(samples >= count, "pipeline: a batch with ", std::max<int64_t>(samples, 0),
                    " samples cannot be divided into ", count,
                    " micro-batches. Use larger batches or a schedule with fewer micro-batches.");
  MicroBatches result;
  for (int64_t i = 0, begin = 0; i < count; ++i) {
    const int64_t length = samples / count + (i < samples % count ? 1 : 0);
    const auto part_of = [&](const std::vector<at::Tensor>& tensors) {
      std::vector<at::Tensor> parts;
      parts.reserve(tensors.size());
      for (const at::Tensor& tensor : tensors) {
        const at::Tensor part = tensor.defined() ? tensor.narrow(0, begin, length) : at::Tensor();
        parts.push_back(copy && part.defined() ? part.clone() : part);
      }
      return parts;
    };
    result.inputs.push_back(part_of(inputs));
    result.targets.push_back(part_of(targets));
    result.samples.push_back(static_cast<double>(length));
    begin += length;
  }
  return result;
}

struct StageRandom::Saved {
  at::Generator generator;
  at::Tensor state;
};

StageRandom::StageRandom(uint64_t seed, int64_t step, c10::Device device)
    : seed_(mix_seed(seed, static_cast<uint64_t>(step))) {
  std::vector<c10::Device> devices = {c10::kCPU};
  if (!device.is_cpu()) devices.push_back(device);
  for (const c10::Device one : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(one);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    saved_.push_back({generator, generator.get_state()});
  }
}

StageRandom::~StageRandom() {
  for (Saved& saved : saved_) {
    const std::lock_guard<std::mutex> lock(saved.generator.mutex());
    saved.generator.set_state(saved.state);
  }
}

void StageRandom::begin(int micro_batch, int part) const {
  const uint64_t seed = mix_seed(seed_, static_cast<uint64_t>(micro_batch), static_cast<uint64_t>(part));
  for (const Saved& saved : saved_) {
    at::Generator generator = saved.generator;
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

void StageRunner::begin(StageStep step) {
  step_ = std::move(step);
  active_.clear();
  outputs_.clear();
  loss_.reset();
  weight_sum_ = std::accumulate(step_.weights.begin(), step_.weights.end(), 0.0);
  if (weight_sum_ == 0) weight_sum_ = 1;  // only other replicas have samples that count
}

double StageRunner::loss() const {
  return loss_.defined() ? loss_.item<double>() : 0;
}

void StageRunner::check(const at::Tensor& tensor, const char* what) const {
  if (!step_.check_finite || !tensor.defined() || !tensor.is_floating_point()) return;
  TORCH_CHECK(at::isfinite(tensor).all().item<bool>(), what, " is infinite or NaN. Find the operator with ",
              "inspect::FirstNan.");
}

at::Tensor StageRunner::receive_input(int stage, int micro_batch) {
  if (stage == 0) return {};
  at::Tensor input = exchange_.receive({false, stage - 1, micro_batch});
  if (step_.loss && exchange_.needs_gradient(stage - 1, micro_batch)) input.requires_grad_();
  return input;
}

at::Tensor StageRunner::run_parts(int stage, int micro_batch, const at::Tensor& input) const {
  const auto end =
      is_last(stage) ? static_cast<int>(parts_.parts.size()) : first_parts_[static_cast<size_t>(stage) + 1];
  at::Tensor x = input;
  for (int part = first_parts_[static_cast<size_t>(stage)]; part < end; ++part) {
    if (step_.random) step_.random->begin(micro_batch, part);
    x = parts_.parts[static_cast<size_t>(part)].run(x, step_.batch->inputs[static_cast<size_t>(micro_batch)]);
  }
  return x;
}

/// The loss from which backward starts.
/// Params: share – set to the weighted loss; unchanged if no sample counts
at::Tensor StageRunner::weighted_loss(const at::Tensor& output, int micro_batch, at::Tensor& share) const {
  const auto at = static_cast<size_t>(micro_batch);
  // The mean of no tokens would be 0 / 0, and so would its gradients. The previous stages need zeros.
  if (step_.weights[at] == 0) return at::where(at::zeros({}, output.options().dtype(at::kBool)), output, 0).sum();
  const at::Tensor loss = (*step_.loss)(output, step_.batch->targets[at]);
  TORCH_CHECK_VALUE(loss.defined() && loss.numel() == 1, "the loss function must return one number.");
  check(loss, "the loss");
  const double weight = step_.weights[at] / weight_sum_;
  share = loss.detach().to(at::kDouble).mul(weight);
  const at::Tensor scaled = loss.mul(weight * step_.loss_factor);
  return step_.grad_scale.defined() ? scaled.mul(step_.grad_scale.to(scaled.device())) : scaled;
}

void StageRunner::forward(int stage, int micro_batch) {
  const c10::AutoGradMode grad_mode(step_.loss != nullptr);
  const at::Tensor input = receive_input(stage, micro_batch);
  at::Tensor output, share;
  call_stage(step_.forward_call, [&] {
    const auto run = [&] { output = run_parts(stage, micro_batch, input); };
    step_.tensor ? step_.tensor->run_part(run) : run();
    TORCH_CHECK_VALUE(output.defined(), "stage ", stage, " returned no tensor.");
    check(output, "the output");
    if (is_last(stage) && step_.loss) output = weighted_loss(output, micro_batch, share);
  });
  // A tensor, because item() would wait for the device.
  if (share.defined()) loss_ = loss_.defined() ? loss_.add(share) : share;
  if (!is_last(stage)) exchange_.send({false, stage, micro_batch}, output, output.requires_grad());
  if (is_last(stage) && !step_.loss) outputs_.push_back(output);
  if (step_.loss) active_[{stage, micro_batch}] = {.input = input, .output = output};
}

void StageRunner::send_gradient(int stage, int micro_batch, const at::Tensor& input) {
  if (stage == 0 || !input.requires_grad()) return;
  TORCH_CHECK_VALUE(input.grad().defined(), "the output of stage ", stage, " does not depend on its input.");
  check(input.grad(), "the gradient of the input");
  exchange_.send({true, stage, micro_batch}, input.grad(), true);
}

void StageRunner::backward(const PipelineAction& action) {
  const auto [work, stage, micro_batch] = action;
  Activation& active = active_.at({stage, micro_batch});
  active.gradient = is_last(stage) ? at::Tensor() : exchange_.receive({true, stage + 1, micro_batch});
  const bool divide = work == PipelineWork::backward_input && step_.divide_backward;
  if (!active.output.requires_grad()) {
    // All parameters of this stage and of the previous ones are frozen.
  } else if (!divide) {
    call_stage(step_.backward_call, [&] { active.output.backward(active.gradient); });
  } else if (active.input.defined() && active.input.requires_grad()) {
    call_stage(step_.backward_call, [&] {
      const at::Tensor gradient = active.gradient.defined() ? active.gradient : at::ones_like(active.output);
      active.split.emplace(active.output, gradient, active.input);
    });
  } else {
    return;  // no stage waits for a gradient, so backward_weight computes all gradients
  }
  const at::Tensor input = active.input;
  if (divide) {
    active.input.reset();
    active.output.reset();
  } else {
    active_.erase({stage, micro_batch});
  }
  if (input.defined()) send_gradient(stage, micro_batch, input);
}

void StageRunner::backward_weight(int stage, int micro_batch) {
  const auto found = active_.find({stage, micro_batch});
  if (found == active_.end()) return;
  Activation& active = found->second;
  if (active.split) {
    call_stage(step_.backward_call, [&] { active.split->weights(); });
  } else if (active.output.defined() && active.output.requires_grad()) {
    call_stage(step_.backward_call, [&] { active.output.backward(active.gradient); });
  }
  active_.erase(found);
}

void StageRunner::run(const PipelineAction& action) {
  if (action.work == PipelineWork::forward) {
    forward(action.stage, action.micro_batch);
  } else if (action.work == PipelineWork::backward_weight) {
    backward_weight(action.stage, action.micro_batch);
  } else {
    backward(action);
  }
}

}  // namespace bellows::parallel
