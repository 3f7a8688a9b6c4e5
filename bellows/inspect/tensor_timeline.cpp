#include "bellows/inspect/tensor_timeline.h"

#include <c10/util/irange.h>

#include <algorithm>

#include "bellows/core/stats.h"

namespace bellows::inspect {

std::string_view to_string(TensorKind kind) {
  constexpr std::array<std::string_view, tensor_kinds> names = {
      "weights",       "master weights", "gradients", "optimizer state", "activations",
      "weight copies", "temporaries",    "buffers",   "inputs",          "other"};
  return names[static_cast<size_t>(kind)];
}

std::vector<int64_t> TensorTimeline::bytes_over_time() const {
  std::vector<int64_t> bytes(events + 1);
  for (const TensorLife& tensor : tensors) {
    bytes[tensor.born + 1] += tensor.bytes;
    if (tensor.died < events) bytes[tensor.died + 1] -= tensor.bytes;
  }
  for (const auto i : c10::irange(events)) bytes[i + 1] += bytes[i];
  return bytes;
}

TensorTimeline::Moment TensorTimeline::peak() const {
  const std::vector<int64_t> bytes = bytes_over_time();
  const auto highest = std::max_element(bytes.begin(), bytes.end());
  Moment result{.event = highest - bytes.begin() - 1, .bytes = *highest};
  for (const TensorLife& tensor : tensors) {
    if (tensor.alive_after(result.event)) result.by_kind[static_cast<size_t>(tensor.kind)] += tensor.bytes;
  }
  return result;
}

std::string TensorTimeline::to_string(size_t largest) const {
  const Moment moment = peak();
  std::string text = "peak " + format_bytes(static_cast<double>(moment.bytes)) + "\n";
  for (const auto kind : c10::irange(tensor_kinds)) {
    if (moment.by_kind[kind] == 0) continue;
    text += c10::str("  ", inspect::to_string(static_cast<TensorKind>(kind)), " ",
                     format_bytes(static_cast<double>(moment.by_kind[kind])), "\n");
  }
  std::vector<const TensorLife*> there;
  for (const TensorLife& tensor : tensors) {
    if (tensor.alive_after(moment.event)) there.push_back(&tensor);
  }
  std::stable_sort(there.begin(), there.end(), [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
  if (there.size() > largest) there.resize(largest);
  for (const TensorLife* tensor : there) {
    text += c10::str("  ", format_bytes(static_cast<double>(tensor->bytes)), " ", inspect::to_string(tensor->kind),
                     ": ", tensor->name.empty() ? tensor->op : tensor->name, tensor->module.empty() ? "" : " in ",
                     tensor->module, "\n");
  }
  return text;
}

}  // namespace bellows::inspect
