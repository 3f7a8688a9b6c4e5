#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <cstring>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/seed.h"
#include "bellows/recompute/forward_state.h"
#include "bellows/recompute/selection.h"

namespace bellows::recompute::detail {

namespace {

at::Generator default_generator(c10::Device device) {
  return device.is_cpu() ? at::detail::getDefaultCPUGenerator() : at::globalContext().defaultGenerator(device);
}

bool same_states(const RandomStates& a, const RandomStates& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.nbytes() == y.second.nbytes() &&
           std::memcmp(x.second.const_data_ptr(), y.second.const_data_ptr(), x.second.nbytes()) == 0;
  });
}

std::vector<c10::Device> devices_of(const std::vector<at::Tensor>& inputs) {
  std::vector<c10::Device> devices{c10::Device(c10::kCPU)};
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || std::count(devices.begin(), devices.end(), input.device())) continue;
    if (input.device().type() == at::getAccelerator()) devices.push_back(input.device());
  }
  return devices;
}

}  // namespace

AutocastState AutocastState::capture() {
  AutocastState state{.devices = {Device{c10::kCPU}, Device{c10::kCUDA}},
                      .cache = at::autocast::is_autocast_cache_enabled(),
                      .weight_casts = tap::WeightCastGuard::active()};
  for (Device& device : state.devices) {
    device.enabled = at::autocast::is_autocast_enabled(device.type);
    device.dtype = at::autocast::get_autocast_dtype(device.type);
  }
  return state;
}

namespace {

/// libtorch's cache does not record the dtype of a cast.
bool other_dtypes(const AutocastState& a, const AutocastState& b) {
  return !std::equal(a.devices.begin(), a.devices.end(), b.devices.begin(),
                     [](const auto& x, const auto& y) { return x.dtype == y.dtype; });
}

void put_autocast(const AutocastState& state) {
  for (const auto& device : state.devices) {
    at::autocast::set_autocast_enabled(device.type, device.enabled);
    at::autocast::set_autocast_dtype(device.type, device.dtype);
  }
  at::autocast::set_autocast_cache_enabled(state.cache);
}

}  // namespace

AutocastScope::AutocastScope(const AutocastState& state)
    : outer_(AutocastState::capture()), other_casts_(other_dtypes(outer_, state)), weight_casts_(state.weight_casts) {
  if (other_casts_) at::autocast::clear_cache();
  put_autocast(state);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  const bool outermost = at::autocast::decrement_nesting() == 0;
  if (outermost || other_casts_) at::autocast::clear_cache();
  put_autocast(outer_);
}

RandomStates random_states(const std::vector<c10::Device>& devices) {
  const PastRegions not_the_functions_operators;
  RandomStates states;
  states.reserve(devices.size());
  for (const c10::Device device : devices) {
    at::Generator generator = default_generator(device);
    const std::lock_guard lock(generator.mutex());
    states.emplace_back(device, generator.get_state());
  }
  return states;
}

void set_random_states(const RandomStates& states) {
  const PastRegions not_the_functions_operators;
  for (const auto& [device, state] : states) {
    at::Generator generator = default_generator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

uint64_t random_position() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(generator.mutex());
  const auto engine = at::check_generator<at::CPUGeneratorImpl>(generator)->engine().data();
  return mix_seed(engine.seed_, engine.state_[0], engine.next_);
}

ForwardState::ForwardState(const std::vector<at::Tensor>& inputs, bool with_random)
    : autocast_(AutocastState::capture()), budget_(current_budget()) {
  if (with_random) random_ = random_states(devices_of(inputs));
}

void ForwardState::finish() {
  std::vector<c10::Device> devices;
  devices.reserve(random_.size());
  for (const auto& item : random_) devices.push_back(item.first);
  if (same_states(random_, random_states(devices))) random_.clear();
}

ForwardStateScope::ForwardStateScope(const ForwardState& state)
    : outer_budget_(std::exchange(current_budget(), state.budget_)), autocast_(state.autocast_) {
  if (state.random_.empty()) return;
  std::vector<c10::Device> devices;
  devices.reserve(state.random_.size());
  for (const auto& item : state.random_) devices.push_back(item.first);
  outer_random_ = random_states(devices);
  set_random_states(state.random_);
}

ForwardStateScope::~ForwardStateScope() {
  current_budget() = outer_budget_;
  try {
    set_random_states(outer_random_);
  } catch (const std::exception& error) {  // a lost device: the next operation on it will also fail
    log_error("checkpoint: cannot restore the state of the random generators: ", user_message(error));
  }
}

}  // namespace bellows::recompute::detail
