#include "bellows/inspect/profile/profile_log.h"

#include <ATen/core/function_schema.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "bellows/core/stats.h"
#include "bellows/system/call_site.h"

namespace bellows::inspect {

namespace {

using Values = c10::ArrayRef<c10::IValue>;

/// Sizes of matmuls, such as channels and features, at which kernels use all lanes of a register.
constexpr int64_t even = 8;
/// Convolutions of images read 1, 3 or 4 channels, which cannot be changed.
constexpr int64_t image_channels = 4;

std::string sizes_text(c10::IntArrayRef sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : "×") + std::to_string(size);
  return text;
}

c10::ScalarType dtype_of(Values inputs, Values outputs) {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  const auto look = [&dtype](const at::Tensor& tensor) {
    if (dtype == c10::ScalarType::Undefined && tensor.is_floating_point()) dtype = tensor.scalar_type();
  };
  for_each_tensor(inputs, look);
  for_each_tensor(outputs, look);
  return dtype;
}

at::Tensor tensor_at(Values values, size_t index) {
  return index < values.size() && values[index].isTensor() ? values[index].toTensor() : at::Tensor();
}

bool is_convolution(const OpInfo& info) {
  return info.flops && info.name.find("conv") != std::string::npos;
}

/// The filters of a convolution or of its backward pass.
at::Tensor filters_of(const OpInfo& info, Values inputs) {
  return tensor_at(inputs, info.name.ends_with("_backward") ? 2 : 1);
}

bool odd_filters(const at::Tensor& filters) {
  return filters.defined() && filters.dim() > 2 &&
         (filters.size(0) % even != 0 || (filters.size(1) % even != 0 && filters.size(1) > image_channels));
}

/// Returns the sizes of the operands, or "" if all sizes that matter are multiples of 8.
std::string odd_sizes_of(const OpInfo& info, Values inputs) {
  if (is_convolution(info)) {
    const at::Tensor filters = filters_of(info, inputs);
    return odd_filters(filters) ? sizes_text(filters.sizes()) : "";
  }
  std::string text;
  bool odd = false;
  for_each_tensor(inputs, [&](const at::Tensor& tensor) {
    if (tensor.dim() < 2) return;
    odd = odd || tensor.size(-1) % even != 0 || tensor.size(-2) % even != 0;
    text += (text.empty() ? "" : " · ") + sizes_text(tensor.sizes());
  });
  return odd ? text : "";
}

bool is_image_layout(const at::Tensor& tensor) {
  return (tensor.dim() == 4 && tensor.is_contiguous(at::MemoryFormat::ChannelsLast)) ||
         (tensor.dim() == 5 && tensor.is_contiguous(at::MemoryFormat::ChannelsLast3d));
}

/// Whether the copy has the same elements in another order in memory.
bool reorders(const at::Tensor& from, const at::Tensor& to) {
  return from.defined() && to.defined() && from.sizes() == to.sizes() && from.numel() > 1 &&
         from.scalar_type() == to.scalar_type() && from.device() == to.device() &&
         from.is_non_overlapping_and_dense() && to.is_non_overlapping_and_dense() && from.strides() != to.strides() &&
         !(from.is_contiguous() && to.is_contiguous()) && !(is_image_layout(from) && is_image_layout(to));
}

/// Whether batch statistics are computed: an argument of most of these operators.
bool trains(const OpInfo& info, Values inputs) {
  const auto& arguments = info.schema->arguments();
  for (size_t i = 0; i < inputs.size() && i < arguments.size(); ++i) {
    if (arguments[i].name() == "training" || arguments[i].name() == "train") return inputs[i].toBool();
  }
  return info.name == "aten::_batch_norm_with_update";
}

template <class Record>
void add_call(Record& record, double seconds) {
  record.calls += 1;
  record.seconds += seconds;
}

template <class Record>
void add_records(Record& sum, const Record& record) {
  sum.calls += record.calls;
  sum.seconds += record.seconds;
  if constexpr (requires { sum.flops; }) sum.flops += record.flops;
  if constexpr (requires { sum.bytes; }) sum.bytes += record.bytes;
}

/// Returns the typical time of a step.
/// Params: seconds – of the steps with a record
double typical_seconds(const std::vector<double>& seconds, size_t steps) {
  if (seconds.size() == steps) return median(seconds);
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(steps);
}

/// Returns a record per step.
/// Params: records – of the steps that have one
template <class Record>
Record typical(const std::vector<Record>& records, size_t steps) {
  Record sum = records.front();
  std::vector<double> seconds = {sum.seconds};
  seconds.reserve(records.size());
  for (size_t i = 1; i < records.size(); ++i) {
    add_records(sum, records[i]);
    seconds.push_back(records[i].seconds);
  }
  const auto count = static_cast<double>(steps);
  sum.calls /= count;
  if constexpr (requires { sum.flops; }) sum.flops /= count;
  if constexpr (requires { sum.bytes; }) sum.bytes /= count;
  sum.seconds = typical_seconds(seconds, steps);
  return sum;
}

}  // namespace

void PhaseLog::before(const tap::OpEvent& event) {
  const bool waits = waits_for_ranks(event);
  if (!waits && !names_phase(event)) return;
  MutexLock lock(mutex_);
  if (waits) {
    ++waits_;
  } else if (depth_++ == 0) {
    const auto known = std::ranges::find(phases_, event.name, &StepPhase::name);
    open_ = static_cast<size_t>(known - phases_.begin());
    if (known == phases_.end()) phases_.push_back({std::string(event.name)});
  }
}

void PhaseLog::after(const tap::OpEvent& event) {
  const bool waits = waits_for_ranks(event);
  if (!waits && !names_phase(event)) return;
  const double seconds = (trace_now_us() - event.start_us) / 1e6;
  MutexLock lock(mutex_);
  if (waits && waits_ > 0 && --waits_ == 0) open_phase().wait_s += seconds;
  if (!waits && depth_ > 0 && --depth_ == 0) phases_[open_].seconds += seconds;
}

std::vector<StepPhase> PhaseLog::take(double seconds) {
  MutexLock lock(mutex_);
  std::vector<StepPhase> phases = std::exchange(phases_, {});
  StepPhase outside = std::exchange(outside_, {});
  outside.seconds = seconds;
  for (const StepPhase& phase : phases) outside.seconds -= phase.seconds;
  outside.seconds = std::max(outside.seconds, 0.0);
  phases.push_back(std::move(outside));
  return phases;
}

struct ProfileLog::Call {
  const Frame& frame;
  Values inputs, outputs;
  double seconds, flops;
  bool recomputed;
  const OpInfo& info() const { return *frame.info; }
};

void ProfileLog::begin_step() {
  MutexLock lock(mutex_);
  steps_.emplace_back();
}

void ProfileLog::before(const tap::OpEvent& event) {
  MutexLock lock(mutex_);
  const Frame& frame = tracker_.enter(event);
  if (names_phase(event)) phases_.emplace_back(event.name);
  if (!frame.base) return;
  Running& running = running_[event.thread_id].emplace_back();
  running.inputs.assign(event.inputs.begin(), event.inputs.end());
  running.start_us = trace_now_us();  // without the work of this function
}

void ProfileLog::after(const tap::OpEvent& event) {
  const double now = trace_now_us();
  MutexLock lock(mutex_);
  const auto frame = tracker_.leave(event);
  if (!frame) return;
  if (names_phase(event) && !phases_.empty()) phases_.pop_back();
  if (waits_for_ranks(event)) note_wait(event, now);
  if (!frame->base) return;
  const Running running = std::move(running_[event.thread_id].back());
  running_[event.thread_id].pop_back();
  // In backward, operators that autograd records are those of a forward pass that runs again.
  const bool recomputed = frame->backward && event.sequence_number >= 0;
  const FlopFormula formula = event.outputs.empty() ? nullptr : frame->info->flops;
  const double flops = formula ? static_cast<double>(formula(running.inputs, event.outputs)) : 0;
  note({*frame, running.inputs, event.outputs, (now - running.start_us - running.wait_us) / 1e6, flops, recomputed});
}

void ProfileLog::note_wait(const tap::OpEvent& event, double now_us) {
  std::vector<Running>& running = running_[event.thread_id];
  if (!running.empty()) running.back().wait_us += now_us - event.start_us;
}

void ProfileLog::note(const Call& call) {
  const OpInfo& info = call.info();
  const c10::ScalarType dtype = dtype_of(call.inputs, call.outputs);
  ProfiledOp& op = records().ops[{&info, phase(), call.frame.backward, dtype}];
  add_call(op, call.seconds);
  op.flops += call.flops;
  if (!info.view && !info.uninitialized)
    op.bytes += static_cast<double>(touched_bytes(call.inputs) + touched_bytes(call.outputs));
  if (call.recomputed) {
    Recomputation& again = records().recomputation;
    add_call(again, call.seconds);
    again.flops += call.flops;
    if (!info.view) again.bytes += static_cast<double>(touched_bytes(call.outputs));
  }
  note_copy(call);
  note_sizes(call);
  note_convolution(call);
  note_batch_norm(call);
}

void ProfileLog::note_copy(const Call& call) {
  const OpInfo& info = call.info();
  const bool in_place = info.name == "aten::copy_";
  if (!in_place && info.name != "aten::clone" && info.name != "aten::_to_copy") return;
  const at::Tensor from = tensor_at(call.inputs, in_place ? 1 : 0), to = tensor_at(call.outputs, 0);
  if (!reorders(from, to)) return;
  const std::string site = call_site();
  ReorderingCopy& copy = records().copies[{&info, call.frame.place, sizes_text(from.sizes()), site}];
  copy.site = site;
  copy.images = (is_image_layout(from) && to.is_contiguous()) || (from.is_contiguous() && is_image_layout(to));
  copy.bytes += static_cast<double>(touched_bytes(from) + touched_bytes(to));
  add_call(copy, call.seconds);
}

void ProfileLog::note_sizes(const Call& call) {
  if (!call.info().flops || call.outputs.empty()) return;
  std::string sizes = odd_sizes_of(call.info(), call.inputs);
  if (sizes.empty()) return;
  OddSizes& odd = records().odd_sizes[{&call.info(), call.frame.place, std::move(sizes), ""}];
  odd.flops += call.flops;
  add_call(odd, call.seconds);
}

void ProfileLog::note_convolution(const Call& call) {
  if (!is_convolution(call.info())) return;
  const at::Tensor image = tensor_at(call.inputs, call.info().name.ends_with("_backward") ? 1 : 0);
  if (!image.defined() || image.dim() != 4) return;
  if (is_image_layout(image) && image.is_contiguous()) return;  // one channel: both layouts are the same
  ConvolutionUse& use = records().convolutions;
  if (is_image_layout(image)) {
    use.channels_last_calls += 1;
  } else {
    use.contiguous_calls += 1;
    use.contiguous_seconds += call.seconds;
  }
}

void ProfileLog::note_batch_norm(const Call& call) {
  const OpInfo& info = call.info();
  if (info.name.find("batch_norm") == std::string::npos || info.name.ends_with("_backward")) return;
  const at::Tensor input = tensor_at(call.inputs, 0);
  if (!input.defined() || input.dim() < 2 || !info.schema || !trains(info, call.inputs)) return;
  int64_t& samples = batch_norms_[call.frame.place];
  samples = std::max(samples, input.size(0));  // the last batch of an epoch can be smaller
}

template <class Record>
std::vector<Record> ProfileLog::merged(std::map<SlowKey, Record> Records::*records) const {
  using ModuleKey = std::tuple<std::string, std::string, std::string, std::string>;
  std::map<ModuleKey, std::vector<Record>> by_step;
  for (const Records& step : steps_) {
    std::map<ModuleKey, Record> sums;
    for (const auto& [key, record] : step.*records) {
      const auto& [info, place, sizes, site] = key;
      const std::string& module = tracker_.map().path(place->module);
      const auto [found, is_new] = sums.try_emplace({info->name, module, sizes, site}, record);
      Record& sum = found->second;
      if (!is_new) add_records(sum, record);
      sum.op = info->name, sum.module = module, sum.sizes = sizes;
    }
    for (const auto& [key, sum] : sums) by_step[key].push_back(sum);
  }
  std::vector<Record> result;
  result.reserve(by_step.size());
  for (const auto& [key, of_steps] : by_step) result.push_back(typical(of_steps, steps_.size()));
  return result;
}

void ProfileLog::add_operators(StepProfile& profile) const {
  std::map<OpKey, std::vector<ProfiledOp>> by_step;
  for (const Records& step : steps_) {
    for (const auto& [key, op] : step.ops) by_step[key].push_back(op);
  }
  profile.ops.reserve(by_step.size());
  for (const auto& [key, of_steps] : by_step) {
    const auto& [info, phase, backward, dtype] = key;
    ProfiledOp& op = profile.ops.emplace_back(typical(of_steps, steps_.size()));
    op.op = info->name, op.phase = phase, op.backward = backward, op.dtype = dtype;
  }
  std::ranges::stable_sort(profile.ops, std::greater<>(), &ProfiledOp::seconds);
}

void ProfileLog::add_convolutions(StepProfile& profile) const {
  const auto count = static_cast<double>(steps_.size());
  std::vector<double> seconds;
  seconds.reserve(steps_.size());
  for (const Records& step : steps_) {
    profile.convolutions.contiguous_calls += step.convolutions.contiguous_calls / count;
    profile.convolutions.channels_last_calls += step.convolutions.channels_last_calls / count;
    seconds.push_back(step.convolutions.contiguous_seconds);
  }
  profile.convolutions.contiguous_seconds = typical_seconds(seconds, steps_.size());
}

void ProfileLog::add_to(StepProfile& profile) const {
  MutexLock lock(mutex_);
  add_operators(profile);
  add_convolutions(profile);
  profile.copies = merged(&Records::copies);
  std::ranges::stable_sort(profile.copies, std::greater<>(), &ReorderingCopy::bytes);
  profile.odd_sizes = merged(&Records::odd_sizes);
  std::ranges::stable_sort(profile.odd_sizes, std::greater<>(), &OddSizes::flops);
  std::map<std::string, int64_t> samples;
  for (const auto& [place, batch] : batch_norms_) {
    int64_t& most = samples[tracker_.map().path(place->module)];
    most = std::max(most, batch);
  }
  for (const auto& [module, batch] : samples) profile.batch_norms.push_back({module, batch});
  std::vector<Recomputation> again;
  again.reserve(steps_.size());
  for (const Records& step : steps_) again.push_back(step.recomputation);
  profile.recomputation = typical(again, steps_.size());
}

}  // namespace bellows::inspect
