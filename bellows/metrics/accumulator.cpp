#include "bellows/metrics/accumulator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace bellows::metrics {

void Accumulator::update(const at::Tensor& preds, const at::Tensor& target) {
  with_batch(preds, target, [&] { add(preds, target); });
}

void Accumulator::choose_device(const at::Tensor& preds, const at::Tensor& target) {
  TORCH_CHECK_VALUE(preds.defined(), who_, ".update: expected a tensor, got an undefined one.");
  const c10::Device given = preds.device(), here = device();
  TORCH_CHECK_VALUE(!target.defined() || target.device() == given, who_,
                    ".update: expected both tensors on the same device, got ", given, " and ", target.device(),
                    ". Move one of them.");
  TORCH_CHECK_VALUE(here == given || here.is_cpu(), who_, ".update: the earlier batches are on ", here,
                    ", but this batch is on ", given, ". Move the batch, or use one metric per device and merge them.");
  use_device(given);
}

void Accumulator::merge(const Accumulator& other) {
  TORCH_CHECK_VALUE(key_ == other.key_, who_, ".merge: expected a metric with the same options, ", key_, "; got ",
                    other.key_, ".");
  const PlainTensors plain;
  changed();
  add_all_of(other);
}

void Accumulator::check() const {
  const PlainTensors plain;
  const at::Tensor invalid_inputs = invalid();
  if (!invalid_inputs.defined()) return;
  const auto count = invalid_inputs.item<int64_t>();
  TORCH_CHECK_VALUE(count == 0, who_, ".compute: ", count, " ", invalid_text(), " since the last reset.");
}

Totals::Totals(const Totals& other) : Accumulator(other), entries_(other.entries_) {
  const PlainTensors plain;
  for (Entry& entry : entries_) {
    if (entry.value.defined()) entry.value = entry.value.clone();
  }
}

c10::Device Totals::device() const {
  return entries_.front().value.defined() ? entries_.front().value.device() : c10::Device(c10::kCPU);
}

void Totals::use_device(c10::Device device) {
  for (Entry& entry : entries_) {
    if (!entry.value.defined()) {
      entry.value = at::zeros(entry.sizes, at::TensorOptions(entry.dtype).device(device));
    } else if (entry.value.device() != device) {
      entry.value = entry.value.to(device);
    }
  }
}

at::Tensor Totals::read(size_t i) const {
  const Entry& entry = entries_[i];
  return entry.value.defined() ? entry.value : at::zeros(entry.sizes, entry.dtype);
}

void Totals::reset() {
  const PlainTensors plain;
  changed();
  for (Entry& entry : entries_) {
    if (entry.value.defined()) entry.value.zero_();
  }
}

void Totals::add_all_of(const Accumulator& other) {
  const auto& totals = static_cast<const Totals&>(other);
  if (!totals.entries_.front().value.defined()) return;
  if (!entries_.front().value.defined()) use_device(totals.device());
  for (size_t i = 0; i < entries_.size(); ++i) entries_[i].value.add_(totals.total(i).to(device()));
}

NamedTensors Totals::state() const {
  const PlainTensors plain;
  NamedTensors result;
  for (size_t i = 0; i < entries_.size(); ++i) result.emplace_back(entries_[i].name, read(i).clone());
  return result;
}

void Totals::load_state(const NamedTensors& state) {
  const PlainTensors plain;
  TORCH_CHECK_VALUE(state.size() == entries_.size(), who(), ".load_state: expected ", entries_.size(), " tensors, got ",
                    state.size(), ". The state belongs to another metric.");
  std::vector<at::Tensor> values;
  for (const Entry& entry : entries_) {
    const auto found = std::find_if(state.begin(), state.end(), [&](const auto& s) { return s.first == entry.name; });
    TORCH_CHECK_VALUE(found != state.end(), who(), ".load_state: \"", entry.name,
                      "\" is missing. The state belongs to another metric.");
    TORCH_CHECK_VALUE(found->second.sizes() == c10::IntArrayRef(entry.sizes), who(), ".load_state: \"", entry.name,
                      "\" has shape ", found->second.sizes(), ", expected ", c10::IntArrayRef(entry.sizes),
                      ". The state belongs to a metric with other options.");
    values.push_back(found->second);
  }
  changed();
  for (size_t i = 0; i < entries_.size(); ++i)
    entries_[i].value = values[i].to(entries_[i].dtype, false, /*copy=*/true);
}

}  // namespace bellows::metrics
