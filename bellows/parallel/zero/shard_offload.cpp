#include "bellows/parallel/zero/shard_offload.h"

#include <ATen/ops/zeros.h>

#include <exception>
#include <unordered_map>
#include <utility>

#include "bellows/comm/collectives.h"
#include "bellows/core/error.h"
#include "bellows/core/round_up.h"
#include "bellows/core/scaled_step.h"
#include "bellows/tap/deferral.h"

namespace bellows::parallel {

BucketFile::BucketFile(const std::vector<int64_t>& bytes, const std::string& folder, int64_t window_bytes,
                       const std::string& user) {
  const int64_t page = optim::StateFile::page_bytes();
  int64_t end = 0;
  parts_.reserve(bytes.size());
  for (const int64_t size : bytes) {
    parts_.push_back({.offset = end, .bytes = round_up(size, page)});
    end += parts_.back().bytes;
  }
  file_ = optim::StateFile::make(folder, end, {user, "To need less space on each disk, use more ranks."});
  writer_ = std::make_unique<optim::StateWriter>(file_, window_bytes);
}

at::Tensor BucketFile::tensor(size_t bucket, int64_t offset, int64_t count, const at::TensorOptions& options) const {
  const int64_t stride = 1;
  return file_->tensor(parts_[bucket].offset + offset, count, stride,
                       options.device(at::kCPU).pinned_memory(false).requires_grad(false));
}

optim::OffloadedStateStats BucketFile::stats() const {
  return {.file_bytes = file_->size(), .resident_bytes = file_->resident_bytes({0, file_->size()})};
}

at::Tensor ShardMemory::allocate(const Layout& layout, size_t index) const {
  const Unit& unit = layout.units[index];
  if (file) return file->tensor(index, 0, unit.slice, unit.flat.options());
  if (!host || unit.flat.is_cpu()) return at::zeros({unit.slice}, unit.flat.options());
  return at::zeros({unit.slice}, unit.flat.options().device(at::kCPU).pinned_memory(true));
}

namespace {

/// While it exists, the groups contain only the parameters of one bucket.
class OnlyBucket {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  OnlyBucket(Groups& groups, std::vector<std::vector<at::Tensor>>& lists) : groups_(groups), lists_(lists) {
    exchange();
  }
  ~OnlyBucket() { exchange(); }
  OnlyBucket(const OnlyBucket&) = delete;
  OnlyBucket& operator=(const OnlyBucket&) = delete;

 private:
  void exchange() {
    for (size_t g = 0; g < groups_.size(); ++g) groups_[g].params().swap(lists_[g]);
  }
  Groups& groups_;
  std::vector<std::vector<at::Tensor>>& lists_;
};

}  // namespace

BucketSteps::BucketSteps(torch::optim::Optimizer& optimizer, Layout& layout, std::shared_ptr<BucketFile> parameters,
                         std::shared_ptr<BucketFile> gradients)
    : optimizer_(optimizer),
      layout_(layout),
      parameters_(std::move(parameters)),
      gradients_(std::move(gradients)),
      buckets_(layout.trained_units, Lists(optimizer.param_groups().size())),
      rest_(optimizer.param_groups().size()) {
  std::unordered_map<const at::TensorImpl*, size_t> units;
  for (size_t i = 0; i < layout.trained_places; ++i)
    units[layout.places[i].piece.unsafeGetTensorImpl()] = layout.places[i].unit;
  for (size_t g = 0; g < rest_.size(); ++g) {
    for (const at::Tensor& parameter : optimizer.param_groups()[g].params()) {
      const auto found = units.find(parameter.unsafeGetTensorImpl());
      (found == units.end() ? rest_ : buckets_[found->second])[g].push_back(parameter);
    }
  }
}

void BucketSteps::offload_state(const std::string& folder, int64_t window_bytes) {
  std::unordered_map<const at::TensorImpl*, bool> sharded;
  for (size_t i = 0; i < layout_.trained_places; ++i) sharded[layout_.places[i].piece.unsafeGetTensorImpl()] = true;
  state_ = std::make_unique<optim::OffloadedState>(
      optimizer_,
      optim::StepInBackwardOptions{.offload_state = true, .folder = folder, .in_flight_bytes = window_bytes},
      [&](const at::Tensor& parameter) { return sharded.contains(parameter.unsafeGetTensorImpl()); });
}

void BucketSteps::state_loaded() {
  if (state_) state_->keep_all();
}

void BucketSteps::step_bucket(size_t bucket, const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  // A deferred step would use all buckets at once.
  const tap::EagerGuard eager;
  step(buckets_[bucket], grad_scale, found_inf);
  for (const auto& file : {parameters_, gradients_}) {
    if (file) file->finish(bucket);
  }
}

void BucketSteps::step(const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  const auto fetch = [&](size_t unit) {
    for (const auto& file : {parameters_, gradients_}) {
      if (file && unit < buckets_.size()) file->fetch(unit);
    }
  };
  fetch(0);
  for (size_t unit = 0; unit < buckets_.size(); ++unit) {
    fetch(unit + 1);
    step_bucket(unit, grad_scale, found_inf);
  }
  const tap::EagerGuard eager;
  bool any = false;
  for (const auto& list : rest_) any = any || !list.empty();
  if (any) step(rest_, grad_scale, found_inf);
}

void BucketSteps::step(Lists& lists, const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  std::vector<at::Tensor> updated;
  for (const auto& list : lists) {
    for (const at::Tensor& parameter : list) {
      if (state_ && &lists != &rest_ && parameter.grad().defined()) updated.push_back(parameter);
    }
  }
  for (const at::Tensor& parameter : updated) state_->before_step(parameter);
  {
    auto* const scaled = dynamic_cast<ScaledStep*>(&optimizer_);
    if (scaled && (grad_scale.defined() || found_inf.defined())) scaled->set_grad_scale(grad_scale, found_inf);
    const OnlyBucket only(optimizer_.param_groups(), lists);
    optimizer_.step();
  }
  for (auto& list : lists) {
    for (at::Tensor& parameter : list) {
      if (&lists != &rest_) parameter.mutable_grad().reset();
    }
  }
  for (const at::Tensor& parameter : updated) state_->after_step(parameter);
}

void BucketSteps::wait() {
  for (const auto& file : {parameters_, gradients_}) {
    if (file) file->wait();
  }
  if (state_) state_->wait();
}

optim::OffloadedStateStats BucketSteps::stats() const {
  optim::OffloadedStateStats sum = state_ ? state_->stats() : optim::OffloadedStateStats();
  for (const auto& file : {parameters_, gradients_}) {
    const optim::OffloadedStateStats more = file ? file->stats() : optim::OffloadedStateStats();
    sum.file_bytes += more.file_bytes;
    sum.resident_bytes += more.resident_bytes;
  }
  return sum;
}

void create_on_all_ranks(const comm::Group& ranks, const std::function<void()>& create) {
  std::exception_ptr error;
  std::string message;
  try {
    create();
  } catch (const std::exception& problem) {
    error = std::current_exception();
    message = c10::str("zero_optimizer: rank ", ranks.rank(), ": ", user_message(problem));
  }
  const std::vector<std::string> messages = comm::all_gather_strings(message, ranks);
  if (error) std::rethrow_exception(error);
  for (const std::string& problem : messages) TORCH_CHECK(problem.empty(), problem);
}

}  // namespace bellows::parallel
