#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "bellows/core/backward_steps.h"
#include "bellows/parallel/zero/gradient_buckets.h"

namespace bellows::parallel {

namespace {

std::optional<comm::Group> duplicate_of(const std::optional<comm::Group>& group) {
  return group ? std::optional(comm::duplicate(*group, "gradients")) : std::nullopt;
}

}  // namespace

class GradientShards::OfSlices final : public ShardedGradients {
 public:
  OfSlices(GradientShards& shards, const ShardedGradients& slices) : shards_(shards), slices_(slices) {}
  virtual ~OfSlices() = default;
  at::Tensor over_ranks(at::Tensor number, Over op) const override {
    return slices_.over_ranks(shards_.over_ranks(std::move(number), op), op);
  }
  const ShardedGradients* outer() const override { return &slices_; }
  GradientShards& shards() const { return shards_; }

 private:
  GradientShards& shards_;
  const ShardedGradients& slices_;
};

GradientShards::GradientShards(Layout& layout, const ShardGroups& groups, const comm::Group& all,
                               std::optional<at::ScalarType> dtype, std::shared_ptr<BucketFile> file)
    : layout_(layout),
      dtype_(dtype),
      groups_(groups),
      all_(all),
      file_(std::move(file)),
      means_(comm::duplicate(groups.shard, "gradients")),
      replica_means_(duplicate_of(groups.replicas)),
      index_in_unit_(layout.trained_places),
      buffers_(layout.trained_units),
      order_(layout.trained_units),
      kept_(layout.trained_places),
      used_(layout.trained_places),
      incomplete_(layout.trained_units) {
  std::iota(order_.begin(), order_.end(), size_t{0});
  taps_.reserve(layout.trained_places);
  for (size_t unit = 0; unit < layout.trained_units; ++unit) {
    const std::vector<size_t>& places = layout.units[unit].places;
    for (size_t i = 0; i < places.size(); ++i) index_in_unit_[places[i]] = i;
  }
  for (size_t i = 0; i < layout.trained_places; ++i) {
    const Place& place = layout.places[i];
    taps_.push_back(std::make_unique<tap::GradientTap>(
        place.parameter, [this, i](const at::Tensor& parameter) { arrived(i, parameter); }));
  }
  register_gradients();
}

GradientShards::~GradientShards() = default;

void GradientShards::register_gradients() {
  std::map<const ShardedGradients*, std::vector<std::pair<at::Tensor, at::Tensor>>> by_slices;
  std::vector<at::Tensor> copies;  // parameters that other ranks of a pipeline or of a tensor axis count in norms
  for (size_t i = 0; i < layout_.trained_places; ++i) {
    const Place& place = layout_.places[i];
    const GradientPart part = gradient_part(place.parameter);
    by_slices[part.owner].emplace_back(place.parameter, place.piece);
    if (!part.counted) copies.push_back(place.parameter);
  }
  for (auto& [slices, parts] : by_slices) {
    const ShardedGradients* owner = this;
    if (slices) owner = of_slices_.emplace_back(std::make_unique<OfSlices>(*this, *slices)).get();
    entries_.push_back(std::make_unique<ShardedGradientsEntry>(*owner, std::move(parts), copies));
  }
}

GradientShards* GradientShards::of(const at::Tensor& parameter) {
  const ShardedGradients* owner = gradient_part(parameter).owner;
  if (const auto* slices = dynamic_cast<const OfSlices*>(owner)) return &slices->shards();
  return const_cast<GradientShards*>(dynamic_cast<const GradientShards*>(owner));  // it was registered as *this
}

at::TensorOptions GradientShards::options_of(const Unit& unit) const {
  const at::TensorOptions options = unit.flat.options();
  return dtype_ && unit.flat.is_floating_point() ? options.dtype(*dtype_) : options;
}

at::Tensor GradientShards::over_ranks(at::Tensor number, Over op) const {
  TORCH_CHECK_VALUE(!updates_, BackwardSteps::gradients_are_freed);
  const c10::Device device = number.device();
  at::Tensor there = number.to(layout_.units.front().flat.device());  // shards may be on the host
  return comm::all_reduce(std::move(there), groups_.divide_state ? all_ : groups_.shard,
                          op == Over::sum ? comm::Reduce::sum : comm::Reduce::max)
      .to(device);
}

void GradientShards::check_ended(const char* where) const {
  TORCH_CHECK(!open_ || !alive_.expired(), where,
              ": a backward pass failed after some gradients had been exchanged, so the ranks may hold different "
              "gradients. End this rank and resume from the last checkpoint.");
}

void GradientShards::arrived(size_t place, const at::Tensor& parameter) {
  const c10::NoGradGuard no_grad;
  const MutexLock lock(mutex_);
  check_ended("backward");
  at::Tensor& gradient = parameter.mutable_grad();
  TORCH_CHECK_VALUE(gradient.layout() == at::kStrided, "zero_optimizer: parameter \"", layout_.places[place].name,
                    "\" has a sparse gradient, which cannot be sharded. Set sparse(false) in the embedding to get a "
                    "dense gradient, or use a separate optimizer for it.");
  TORCH_CHECK_VALUE(!updates_ || !gradient.requires_grad(), BackwardSteps::needs_no_graph);
  if (keeps_ > 0) {
    kept_[place] = true;
    return;
  }
  follow_backward();
  put(place, gradient);
  const auto is_complete = [](const Buffer& buffer) { return buffer.flat.defined() && buffer.missing == 0; };
  while (next_ < order_.size() && is_complete(buffers_[order_[next_]])) send_next();
}

/// When a nested backward ends, it also ends this exchange; later gradients are added by a new one.
void GradientShards::follow_backward() {
  if (open_ && backward_ == tap::backward_id()) return;
  if (updates_ && !open_) updates_->begin();
  open_ = true;
  backward_ = tap::backward_id();
  const auto alive = std::make_shared<int>();
  alive_ = alive;
  tap::at_end_of_backward([this, alive] {
    const MutexLock lock(mutex_);
    if (open_) end();
  });
}

void GradientShards::start_keeping() {
  const MutexLock lock(mutex_);
  TORCH_CHECK_VALUE(!updates_,
                    "ShardedOptimizer::no_sync: each backward() is a step of its own while step_in_backward ",
                    "is on. End step_in_backward before you accumulate gradients.");
  ++keeps_;
}

void GradientShards::stop_keeping() {
  const MutexLock lock(mutex_);
  --keeps_;
}

void GradientShards::exchange_kept() {
  const c10::NoGradGuard no_grad;
  const MutexLock lock(mutex_);
  check_ended("the exchange of gradients");
  for (size_t i = 0; i < layout_.trained_places; ++i)
    kept_[i] = layout_.places[i].parameter.grad().defined();  // also those that other ranks have sent (tied weights)
  open_ = true;
  end();
}

void GradientShards::start_updates(Updates& updates) {
  const MutexLock lock(mutex_);
  TORCH_CHECK_VALUE(!updates_, "step_in_backward: it is already on for this optimizer.");
  for (size_t i = 0; i < layout_.trained_places; ++i) {
    const Place& place = layout_.places[i];
    TORCH_CHECK_VALUE(keeps_ == 0 && !place.piece.grad().defined() && !place.parameter.grad().defined(),
                      "step_in_backward: parameter \"", place.name,
                      "\" already has a gradient, or a guard of no_sync() ",
                      "exists, but every backward pass is a separate step. Finish the accumulation with step() and ",
                      "zero_grad() first.");
  }
  updates_ = &updates;
}

void GradientShards::stop_updates() {
  const MutexLock lock(mutex_);
  updates_ = nullptr;
}

/// Moves a gradient to its bucket.
void GradientShards::put(size_t place, at::Tensor& gradient) {
  const Place& where = layout_.places[place];
  Unit& unit = layout_.units[where.unit];
  Buffer& buffer = buffers_[where.unit];
  if (!buffer.flat.defined()) {
    buffer.flat = at::empty(unit.flat.sizes(), options_of(unit));
    buffer.came.assign(unit.places.size(), false);
    buffer.missing = unit.places.size();
  }
  at::Tensor view = where.view_of(buffer.flat);
  std::vector<bool>::reference came = buffer.came[index_in_unit_[place]];
  if (came) {
    view.add_(gradient);
  } else {
    view.copy_(gradient);
    came = true;
    used_[place] = true;
    --buffer.missing;
  }
  gradient.reset();
  kept_[place] = false;
}

/// Completes a bucket with kept gradients of earlier backward passes, and with zeros.
void GradientShards::fill_missing(size_t bucket) {
  const Unit& unit = layout_.units[bucket];
  for (const size_t place : unit.places) {
    at::Tensor& gradient = layout_.places[place].parameter.mutable_grad();
    if (kept_[place] && gradient.defined()) put(place, gradient);
  }
  Buffer& buffer = buffers_[bucket];
  if (!buffer.flat.defined()) {
    buffer.flat = at::zeros(unit.flat.sizes(), options_of(unit));
    return;
  }
  for (size_t i = 0; i < unit.places.size(); ++i) {
    if (!buffer.came[i]) layout_.places[unit.places[i]].view_of(buffer.flat).zero_();
  }
}

void GradientShards::send_next() {
  constexpr size_t most_under_way = 2;
  while (under_way_.size() >= most_under_way) keep_oldest();
  const size_t index = order_[next_];
  const Unit& unit = layout_.units[index];
  const auto adds = [&](size_t place) { return layout_.places[place].piece.grad().defined(); };
  if (file_ && std::any_of(unit.places.begin(), unit.places.end(), adds)) file_->fetch(index);
  Buffer& buffer = buffers_[index];
  if (!buffer.flat.defined() || buffer.missing > 0) {
    incomplete_[index] = true;
    fill_missing(index);
  }
  at::Tensor flags;
  if (updates_) flags = flags_of(index);  // before the buffer is sent
  under_way_.push_back({index, comm::reduce_scatter_async(buffer.flat, means_, comm::Reduce::mean)});
  if (updates_) under_way_.back().flags = comm::all_reduce_async(flags, means_, comm::Reduce::max);
  buffer = {};
  ++next_;
}

/// Returns one byte per parameter of the bucket: whether it has a gradient on this rank. A last byte states whether the
/// bucket is incomplete.
at::Tensor GradientShards::flags_of(size_t unit) const {
  const std::vector<bool>& came = buffers_[unit].came;  // empty if no gradient arrived
  at::Tensor flags = at::zeros({static_cast<int64_t>(layout_.units[unit].places.size()) + 1}, at::kByte);
  auto* const bytes = flags.mutable_data_ptr<uint8_t>();
  std::copy(came.begin(), came.end(), bytes);
  bytes[flags.numel() - 1] = incomplete_[unit] ? 1 : 0;
  return flags;
}

void GradientShards::keep_oldest() {
  UnderWay done = std::move(under_way_.front());
  under_way_.pop_front();
  const at::Tensor slice = done.mean.wait();
  if (!replica_means_) return take_mean(done, slice);
  keep_averaged();
  std::optional<comm::Pending> flags;
  if (done.flags) flags = comm::all_reduce_async(done.flags->wait(), *replica_means_, comm::Reduce::max);
  averaging_ = UnderWay{done.unit,
                        groups_.divide_state ? comm::reduce_scatter_async(slice, *replica_means_, comm::Reduce::mean)
                                             : comm::all_reduce_async(slice, *replica_means_, comm::Reduce::mean),
                        std::move(flags)};
}

void GradientShards::keep_averaged() {
  if (!averaging_) return;
  UnderWay done = std::move(*averaging_);
  averaging_.reset();
  const at::Tensor mean = done.mean.wait();
  take_mean(done, mean);
}

/// Adds the mean to the gradients of the shards, and updates the parameters if this happens during backward.
void GradientShards::take_mean(UnderWay& done, const at::Tensor& mean) {
  add_to_pieces(done.unit, mean);
  if (!updates_) return;
  const at::Tensor flags = done.flags->wait();
  const auto* used = flags.const_data_ptr<uint8_t>();
  for (const size_t place : layout_.units[done.unit].places) {
    if (*used++ == 0) layout_.places[place].piece.mutable_grad().reset();
  }
  incomplete_[done.unit] = *used != 0;
  updates_->update(done.unit);
}

/// Params: mean – [elements that this rank updates]
void GradientShards::add_to_pieces(size_t index_of_unit, const at::Tensor& mean) {
  const Unit& unit = layout_.units[index_of_unit];
  for (const size_t index : unit.places) {
    Place& place = layout_.places[index];
    if (place.count == 0) continue;
    const at::Tensor part = mean.narrow(0, place.offset + place.begin - unit.own, place.count);
    at::Tensor& sum = place.piece.mutable_grad();
    if (sum.defined()) {
      sum.add_(part.to(sum.device()));
    } else {
      sum = stored(place, part);
    }
  }
  if (file_) file_->finish(index_of_unit);
}

/// Returns the first gradient of a shard in the memory where its sum is stored. It is not a view, because libtorch's
/// zero_grad() does not support views.
at::Tensor GradientShards::stored(const Place& place, const at::Tensor& gradient) const {
  const at::TensorOptions options = place.piece.options().requires_grad(false);
  if (file_) {
    const int64_t begin = place.offset + place.begin - layout_.units[place.unit].own;
    const int64_t bytes = begin * static_cast<int64_t>(place.piece.element_size());
    return file_->tensor(place.unit, bytes, place.count, options).copy_(gradient);
  }
  if (place.piece.device() == gradient.device()) return gradient.to(place.piece.scalar_type()).variable_data();
  return at::empty({place.count}, options.pinned_memory(true)).copy_(gradient);
}

void GradientShards::end() {
  const c10::NoGradGuard no_grad;
  while (next_ < order_.size()) send_next();
  while (!under_way_.empty()) keep_oldest();
  keep_averaged();
  next_ = 0;
  open_ = false;
  backward_ = -1;
  if (!updates_) return;
  used_.assign(used_.size(), false);
  send_incomplete_last();
  updates_->end();
}

/// Determines the order of the next backward pass. All ranks must have the same `incomplete_`.
void GradientShards::send_incomplete_last() {
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_partition(order_.begin(), order_.end(),
                        [&](size_t bucket) BELLOWS_REQUIRES(mutex_) { return !incomplete_[bucket]; });
  incomplete_.assign(incomplete_.size(), false);
}

std::vector<bool> GradientShards::take_used() {
  check_ended("ShardedOptimizer::step");
  for (size_t place = 0; place < kept_.size(); ++place) {
    TORCH_CHECK_VALUE(
        !kept_[place] || !layout_.places[place].parameter.grad().defined(),
        "ShardedOptimizer::step: the gradient of \"", layout_.places[place].name,
        "\" was not exchanged, because each backward() ran inside no_sync(). Run the last backward() of a "
        "step outside it.");
  }
  kept_.assign(kept_.size(), false);
  at::Tensor flags = at::empty({static_cast<int64_t>(used_.size() + incomplete_.size())}, at::kByte);
  auto* const used = flags.mutable_data_ptr<uint8_t>();
  auto* const incomplete = std::copy(used_.begin(), used_.end(), used);
  std::copy(incomplete_.begin(), incomplete_.end(), incomplete);
  std::vector<bool> result(used_.size());  // allocated here, because ranks that threw below would use another order
  comm::all_reduce(flags, all_, comm::Reduce::max);
  std::copy(used, incomplete, result.begin());
  std::copy_n(incomplete, incomplete_.size(), incomplete_.begin());
  used_.assign(used_.size(), false);
  send_incomplete_last();
  return result;
}

}  // namespace bellows::parallel
