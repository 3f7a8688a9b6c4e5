#include "bellows/parallel/data_parallel.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/thread_pool.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <latch>

#include "bellows/core/error.h"
#include "bellows/core/mutex.h"
#include "bellows/tap/context.h"
#include "bellows/tap/half_operators.h"
#include "bellows/tap/weight_casts.h"

namespace bellows::parallel {

namespace {

/// One part of a batch.
struct Part {
  std::vector<at::Tensor> tensors;
  int64_t begin = 0, size = 0;
};

/// Splits into nearly equal parts, at most one per replica or sample.
std::vector<Part> split_batch(const std::vector<at::Tensor>& batch, size_t replicas) {
  TORCH_CHECK_VALUE(!batch.empty(), "DataParallel: expected a batch, got no tensors.");
  for (const at::Tensor& tensor : batch) {
    TORCH_CHECK_VALUE(tensor.defined() && tensor.dim() > 0 && tensor.size(0) == batch[0].size(0) && tensor.size(0) > 0,
                      "DataParallel: expected tensors with the same number of samples along dim 0, got shape ",
                      tensor.defined() ? c10::str(tensor.sizes()) : "none", " and ", batch[0].sizes(), ".");
  }
  const int64_t count = std::min(batch[0].size(0), static_cast<int64_t>(replicas));
  std::vector<Part> parts(static_cast<size_t>(count));
  for (const at::Tensor& tensor : batch) {
    const auto split = tensor.tensor_split(count, 0);
    for (size_t i = 0; i < parts.size(); ++i) parts[i].tensors.push_back(split[i]);
  }
  int64_t begin = 0;
  for (Part& part : parts) {
    part.begin = begin;
    part.size = part.tensors[0].size(0);
    begin += part.size;
  }
  return parts;
}

/// Threads that share the caller's intra-op threads.
std::unique_ptr<c10::ThreadPool> replica_threads(size_t count) {
  const int all = at::get_num_threads(), share = std::max(1, all / static_cast<int>(count));
  std::latch begun(static_cast<std::ptrdiff_t>(count));
  Mutex one_by_one;
  auto threads = std::make_unique<c10::ThreadPool>(static_cast<int>(count), /*numa_node_id=*/-1, [&] {
    {
      const MutexLock lock(one_by_one);
      at::set_num_threads(share);  // for this thread and threads that it starts
    }
    begun.count_down();
  });
  begun.wait();
  at::set_num_threads(all);
  return threads;
}

void copy_modes(const Model& from, const Model& to) {
  const auto source = from.module_or_null(), target = to.module_or_null();
  if (!source || !target) {
    to.train(from.training());
    return;
  }
  // Parents come first, because train() also changes the children
  const auto modes = source->modules(), parts = target->modules();
  for (size_t i = 0; i < parts.size() && i < modes.size(); ++i) parts[i]->train(modes[i]->is_training());
}

int64_t bytes_of(const at::Tensor& tensor) {
  if (!tensor.is_sparse()) return static_cast<int64_t>(tensor.nbytes());
  return static_cast<int64_t>(tensor._indices().nbytes() + tensor._values().nbytes());
}

void check_alike(const NamedTensors& expected, const NamedTensors& got, size_t replica) {
  TORCH_CHECK_VALUE(expected.size() == got.size(), "DataParallel: expected replica ", replica, " to have the model's ",
                    expected.size(), " parameters or buffers, got ", got.size(),
                    ". The function `make` must create the same model.");
  for (size_t i = 0; i < got.size(); ++i) {
    const auto& [name, tensor] = got[i];
    TORCH_CHECK_VALUE(name == expected[i].first && tensor.sizes() == expected[i].second.sizes(),
                      "DataParallel: expected replica ", replica, " to have \"", expected[i].first, "\" of shape ",
                      expected[i].second.sizes(), ", got \"", name, "\" of shape ", tensor.sizes(),
                      ". The function `make` must create the same model.");
    TORCH_CHECK_VALUE(!tensor.is_same(expected[i].second), "DataParallel: replica ", replica, " shares the tensor \"",
                      name, "\" with the model. The function `make` must create a new model in each call.");
  }
}

[[noreturn]] void rethrow_named(const std::exception_ptr& error, size_t replica, c10::Device device, const Part& part) {
  const std::string where = c10::str("DataParallel: replica ", replica, " (", device, ", samples ", part.begin, " to ",
                                     part.begin + part.size - 1, "): ");
  try {
    std::rethrow_exception(error);
  } catch (const c10::ValueError& thrown) {
    TORCH_CHECK_VALUE(false, where, user_message(thrown));
  } catch (const std::exception& thrown) {
    TORCH_CHECK(false, where, user_message(thrown));
  }
}

}  // namespace

struct DataParallel::State {
  std::vector<Model> replicas;  ///< the first is the model
  std::vector<c10::Device> devices;
  std::unique_ptr<c10::ThreadPool> threads;
  ReplicaTraffic traffic;

  void add_replica(Model copy, size_t index);
  void refresh(size_t count);
  void run(const std::vector<Part>& parts, const std::function<void(size_t)>& body);
  void sum_gradients();
  void drop_gradients() const;
};

void DataParallel::State::add_replica(Model copy, size_t index) {
  check_alike(replicas[0].named_parameters(), copy.named_parameters(), index);
  check_alike(replicas[0].named_buffers(), copy.named_buffers(), index);
  copy.to(devices[index]);
  const NamedTensors from = replicas[0].state_dict(), to = copy.state_dict();
  for (size_t i = 0; i < to.size(); ++i) {
    at::Tensor tensor = to[i].second;
    tensor.set_data(
        from[i].second.detach().to(devices[index], /*non_blocking=*/false, /*copy=*/true));  // dtype, strides
  }
  replicas.push_back(std::move(copy));
}

/// Prepares the first `count` replicas: copies the model's weights, buffers and modes.
void DataParallel::State::refresh(size_t count) {
  const c10::NoGradGuard no_grad;
  const auto own = replicas[0].parameters();
  const NamedTensors own_buffers = replicas[0].named_buffers();
  for (size_t r = 1; r < count; ++r) {
    auto copies = replicas[r].parameters();
    for (size_t i = 0; i < copies.size(); ++i) {
      copies[i].set_requires_grad(own[i].requires_grad());
      if (devices[r] != devices[0]) {
        copies[i].copy_(own[i], /*non_blocking=*/true);
        traffic.weights += bytes_of(own[i]);
      } else if (copies[i].data_ptr() != own[i].data_ptr()) {
        copies[i].set_data(own[i].detach());
      }
    }
    NamedTensors buffers = replicas[r].named_buffers();
    for (size_t i = 0; i < buffers.size(); ++i) {
      buffers[i].second.copy_(own_buffers[i].second, /*non_blocking=*/true);
      traffic.buffers += bytes_of(own_buffers[i].second);
    }
    copy_modes(replicas[0], replicas[r]);
  }
}

void DataParallel::State::run(const std::vector<Part>& parts, const std::function<void(size_t)>& body) {
  refresh(parts.size());
  const tap::Context context = tap::Context::capture();
  // The context does not contain these parts of an autocast guard.
  const bool casts_once = tap::WeightCastGuard::active(), fast_half = tap::FastHalfGuard::active();
  std::vector<std::exception_ptr> errors(parts.size());
  for (size_t r = 0; r < parts.size(); ++r) {
    threads->run([&, r] {
      try {
        const tap::ContextGuard guard(context);
        const tap::WeightCastGuard weight_casts(casts_once);
        const tap::FastHalfGuard half_operators(fast_half);
        const c10::OptionalDeviceGuard device(devices[r].is_cpu() ? std::nullopt : std::optional(devices[r]));
        body(r);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  threads->waitWorkComplete();
  for (size_t r = 0; r < parts.size(); ++r) {
    if (!errors[r]) continue;
    drop_gradients();
    rethrow_named(errors[r], r, devices[r], parts[r]);
  }
}

/// Adds the replicas' gradients to those of the model, in replica order.
void DataParallel::State::sum_gradients() {
  const c10::NoGradGuard no_grad;
  auto own = replicas[0].parameters();
  for (size_t r = 1; r < replicas.size(); ++r) {
    auto copies = replicas[r].parameters();
    for (size_t i = 0; i < copies.size(); ++i) {
      // Reset, so that tied weights are added only once.
      const at::Tensor gradient = std::exchange(copies[i].mutable_grad(), at::Tensor());
      if (!gradient.defined()) continue;
      traffic.gradients += bytes_of(gradient);
      at::Tensor& sum = own[i].mutable_grad();
      sum = sum.defined() ? sum.add_(gradient.to(sum.device())) : gradient.to(own[i].device());
    }
  }
}

void DataParallel::State::drop_gradients() const {
  for (size_t r = 1; r < replicas.size(); ++r) {
    for (at::Tensor& parameter : replicas[r].parameters()) parameter.mutable_grad().reset();
  }
}

DataParallel::DataParallel(Model model, const std::function<Model()>& make, std::vector<c10::Device> devices)
    : state_(std::make_unique<State>()) {
  TORCH_CHECK_VALUE(!devices.empty(), "DataParallel: expected devices, got none.");
  TORCH_CHECK_VALUE(make || devices.size() == 1, "DataParallel: expected a function that creates replicas, got none.");
  // Converts "cuda" to "cuda:0"
  for (c10::Device& device : devices) device = at::empty({0}, at::device(device)).device();
  for (const auto& [name, tensor] : model.state_dict()) {
    TORCH_CHECK_VALUE(tensor.device() == devices[0], "DataParallel: expected the model on the first device, ",
                      devices[0], ", got \"", name, "\" on ", tensor.device(), ".");
  }
  state_->devices = std::move(devices);
  state_->replicas.push_back(std::move(model));
  for (size_t r = 1; r < state_->devices.size(); ++r) state_->add_replica(make(), r);
  state_->threads = replica_threads(state_->devices.size());
}

DataParallel::~DataParallel() = default;
DataParallel::DataParallel(DataParallel&&) noexcept = default;
DataParallel& DataParallel::operator=(DataParallel&&) noexcept = default;

at::Tensor DataParallel::backward(const std::vector<at::Tensor>& batch, const Loss& loss,
                                  const DataParallelStep& step) {
  const LossOfPart without_place = [&loss](const Model& replica, const std::vector<at::Tensor>& part,
                                           const BatchPart&) { return loss(replica, part); };
  return backward(batch, without_place, step);
}

at::Tensor DataParallel::backward(const std::vector<at::Tensor>& batch, const LossOfPart& loss,
                                  const DataParallelStep& step) {
  const std::vector<Part> parts = split_batch(batch, replicas());
  std::vector<at::Tensor> losses(parts.size());
  state_->run(parts, [&](size_t r) {
    std::vector<at::Tensor> part;
    part.reserve(batch.size());
    for (const at::Tensor& tensor : parts[r].tensors) part.push_back(tensor.to(state_->devices[r]));
    const at::Tensor value = loss(state_->replicas[r], part, {.replica = r, .begin = parts[r].begin});
    TORCH_CHECK_VALUE(value.defined() && value.numel() == 1, "expected a loss of one number, got shape ",
                      value.defined() ? c10::str(value.sizes()) : "none", ".");
    const double weight = step.loss_over == LossOver::sum
                              ? 1
                              : static_cast<double>(parts[r].size) / static_cast<double>(batch[0].size(0));
    at::Tensor seed = at::full_like(value, weight);
    if (step.gradient.defined()) seed.mul_(step.gradient.to(seed.device()));
    losses[r] = value.detach().mul(weight);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    value.backward(seed);
  });
  state_->sum_gradients();
  at::Tensor total = losses[0];
  for (size_t r = 1; r < losses.size(); ++r) total.add_(losses[r].to(total.device()));
  return total;
}

at::Tensor DataParallel::forward(const at::Tensor& input) {
  const c10::NoGradGuard no_grad;
  const std::vector<Part> parts = split_batch({input}, replicas());
  std::vector<at::Tensor> outputs(parts.size());
  state_->run(parts, [&](size_t r) {
    outputs[r] = state_->replicas[r].forward(parts[r].tensors[0].to(state_->devices[r])).to(state_->devices[0]);
  });
  return at::cat(outputs);
}

size_t DataParallel::replicas() const {
  return state_->replicas.size();
}

ReplicaTraffic DataParallel::exchanged() const {
  return state_->traffic;
}

}  // namespace bellows::parallel
