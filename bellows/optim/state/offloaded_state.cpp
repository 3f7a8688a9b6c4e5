#include "bellows/optim/state/offloaded_state.h"

#include <algorithm>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/round_up.h"
#include "bellows/optim/optimizers.h"
#include "bellows/optim/state/fields_impl.h"

namespace bellows::optim {

namespace {

constexpr int64_t tensor_alignment = 64;

// Number of state tensors of a parameter.
int64_t moments_of(const to::SGDOptions& o) {
  return o.momentum() != 0;
}
template <class Adam>
int64_t moments_of_adam(const Adam& o) {
  return o.amsgrad() ? 3 : 2;
}
int64_t moments_of(const to::AdamOptions& o) {
  return moments_of_adam(o);
}
int64_t moments_of(const to::AdamWOptions& o) {
  return moments_of_adam(o);
}
int64_t moments_of(const to::RMSpropOptions& o) {
  return 1 + (o.momentum() > 0) + o.centered();
}
int64_t moments_of(const to::AdagradOptions&) {
  return 1;
}
int64_t moments_of(const LionGroupOptions&) {
  return 1;
}

/// Size in the file of a tensor with these sizes. It is not 0 for empty tensors, so that a rank with an empty shard
/// behaves as other ranks do.
int64_t bytes_in_file(at::IntArrayRef sizes, at::ScalarType type) {
  const int64_t bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(type));
  return round_up(std::max<int64_t>(bytes, 1), tensor_alignment);
}

/// Size of all state of a parameter, whether it exists yet or not.
int64_t state_bytes(const to::Optimizer& optimizer, const to::OptimizerOptions& options, const at::Tensor& p) {
  const auto* ours = dynamic_cast<const LibtorchOptimizer*>(&optimizer);
  int64_t bytes = ours && ours->keeps_master(p) ? bytes_in_file(p.sizes(), at::kFloat) : 0;
  const bool known = with_kind(options, [&](auto kind) {
    using Options = typename decltype(kind)::Options;
    if constexpr (requires(const Options& o) { moments_of(o); }) {
      const std::vector<int64_t> sizes = ours ? ours->state_sizes(p) : p.sizes().vec();
      bytes += moments_of(static_cast<const Options&>(options)) *
               bytes_in_file(sizes, ours ? ours->state_dtype(p) : p.scalar_type());
      return true;
    }
    return false;
  });
  TORCH_CHECK_VALUE(known,
                    "offload_state: expected one of the optimizers SGD, Adam, AdamW, RMSprop, Adagrad or Lion of "
                    "bellows::optim or torch::optim. Do not set offload_state for other optimizers.");
  return bytes;
}

}  // namespace

OffloadedState::OffloadedState(to::Optimizer& optimizer, const StepInBackwardOptions& options, const Chosen& chosen)
    : optimizer_(optimizer), in_flight_bytes_(options.in_flight_bytes) {
  TORCH_CHECK_VALUE(options.in_flight_bytes > 0, "offload_state: expected in_flight_bytes above 0, got ",
                    options.in_flight_bytes, ".");
  lay_out(chosen);
  TORCH_CHECK_VALUE(bytes_ > 0,
                    "offload_state: this optimizer has no state (SGD without momentum?). Do not set offload_state.");
  file_ = StateFile::make(options.folder, bytes_);
  writer_ = std::make_unique<StateWriter>(file_, in_flight_bytes_);
  keep_all();
}

void OffloadedState::lay_out(const Chosen& chosen) {
  for (size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
    const auto& group = optimizer_.param_groups()[g];
    for (const at::Tensor& p : group.params()) {
      if (!chosen(p)) continue;
      TORCH_CHECK_VALUE(p.is_cpu() && p.is_non_overlapping_and_dense(),
                        "offload_state: expected dense parameters on the ", "CPU, got one of shape ", p.sizes(), " on ",
                        p.device(), ", strides ", p.strides(), ".");
      const int64_t bytes = round_up(state_bytes(optimizer_, group.options(), p), StateFile::page_bytes());
      index_of_[p.unsafeGetTensorImpl()] = places_.size();
      places_.push_back({.parameter = p, .group = g, .part = {bytes_, bytes}});
      bytes_ += bytes;
    }
  }
  // Reserves the memory that arrived() needs, so that it cannot fail between two changes.
  came_.assign(places_.size(), false);
  position_.assign(places_.size(), 0);
  order_.reserve(places_.size()), coming_.reserve(places_.size());
}

at::Tensor OffloadedState::in_file(Place& place, size_t field, const at::Tensor& tensor) const {
  if (!tensor.defined() || file_->holds(tensor)) return tensor;
  const int64_t bytes = bytes_in_file(tensor.sizes(), tensor.scalar_type());
  if (place.fields.size() <= field) place.fields.resize(field + 1);
  FilePart& part = place.fields[field];
  if (part.bytes == 0 && place.used + bytes <= place.part.bytes) {
    part = {place.part.offset + place.used, bytes};
    place.used += bytes;
  }
  // State that was not expected, because options have changed, stays in memory.
  return part.bytes == bytes && tensor.is_non_overlapping_and_dense() ? file_->put(tensor, part.offset) : tensor;
}

void OffloadedState::keep(Place& place) {
  const c10::NoGradGuard no_grad;
  size_t field = 0;
  if (auto* ours = dynamic_cast<LibtorchOptimizer*>(&optimizer_)) {
    if (const at::Tensor master = ours->master_weight(place.parameter); master.defined())
      ours->set_master_weight(place.parameter, in_file(place, field, master));
  }
  const auto found = optimizer_.state().find(place.parameter.unsafeGetTensorImpl());
  if (found == optimizer_.state().end()) return;
  with_kind(optimizer_.param_groups()[place.group].options(), [&](auto kind) {
    fields(static_cast<typename decltype(kind)::State&>(*found->second), [&](const char*, auto& value) {
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
        value = in_file(place, ++field, value);
      }
    });
    return true;
  });
  writer_->give(place.part);
}

void OffloadedState::keep_all() {
  for (Place& place : places_) keep(place);
}

void OffloadedState::before_step(const at::Tensor& parameter) {
  arrived(index_of_.at(parameter.unsafeGetTensorImpl()));
}

void OffloadedState::after_step(const at::Tensor& parameter) {
  keep(places_[index_of_.at(parameter.unsafeGetTensorImpl())]);
}

/// A gradient that arrives for the second time starts the next pass.
void OffloadedState::arrived(size_t index) {
  if (came_[index]) {
    order_.swap(coming_);
    coming_.clear();
    came_.assign(places_.size(), false);
    position_.assign(places_.size(), order_.size());
    for (size_t at = 0; at < order_.size(); ++at) position_[order_[at]] = at;
  }
  came_[index] = true;
  coming_.push_back(index);
  if (!order_.empty() && position_[index] < order_.size()) return read_ahead(position_[index]);
  file_->fetch(places_[index].part);  // a page fault would also read neighbouring pages, megabytes of them
}

void OffloadedState::read_ahead(size_t position) {
  const size_t count = order_.size();
  const auto part = [&](size_t behind) { return places_[order_[(position + behind) % count]].part; };
  if (ahead_ > 0 && position == (last_ + 1) % count) {
    ahead_bytes_ -= part(0).bytes;
    --ahead_;
  } else {
    ahead_ = 0, ahead_bytes_ = 0;
    file_->fetch(part(0));
  }
  last_ = position;
  // Limited, so that parts are not read again before they are written out.
  while (ahead_ + 1 < count && ahead_bytes_ + part(ahead_ + 1).bytes <= std::min(in_flight_bytes_, bytes_ / 2)) {
    ahead_bytes_ += part(++ahead_).bytes;
    file_->fetch(part(ahead_));
  }
}

OffloadedStateStats OffloadedState::stats() const {
  return {.file_bytes = file_->size(), .resident_bytes = file_->resident_bytes({0, file_->size()})};
}

}  // namespace bellows::optim
