#include "bellows/parallel/reduce_metrics.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "bellows/comm/collectives.h"
#include "bellows/parallel/ddp/same_model.h"

namespace bellows::parallel {

namespace {

at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.contiguous().reshape({-1}).view(at::kByte);
}

/// Packs a hash of the metrics, the rows and dtype of each state tensor (which may differ between ranks), and the
/// tensors.
at::Tensor pack(const std::vector<std::string>& keys, const NamedTensors& state) {
  std::vector<int64_t> header = {static_cast<int64_t>(std::hash<std::string>{}(c10::Join("\n", keys)))};
  std::vector<at::Tensor> parts(1);
  header.reserve(1 + 2 * state.size());
  parts.reserve(1 + state.size());
  for (const auto& [name, tensor] : state) {
    header.push_back(tensor.dim() > 0 ? tensor.size(0) : 1);
    header.push_back(static_cast<int64_t>(tensor.scalar_type()));
    parts.push_back(as_bytes(tensor));
  }
  parts.front() = as_bytes(at::tensor(header)).to(state.front().second.device());
  return at::cat(parts);
}

int64_t number_at(const at::Tensor& bytes, int64_t index) {
  constexpr int64_t size = sizeof(int64_t);
  return bytes.narrow(0, index * size, size).clone().view(at::kLong).item<int64_t>();
}

/// Unpacks the state of a rank; sizes after the first dim are those of `own`.
NamedTensors unpack(const at::Tensor& bytes, const NamedTensors& own) {
  NamedTensors state;
  const auto count = static_cast<int64_t>(own.size());
  int64_t at = (1 + 2 * count) * static_cast<int64_t>(sizeof(int64_t));
  for (int64_t i = 0; i < count; ++i) {
    const auto& [name, like] = own[static_cast<size_t>(i)];
    std::vector<int64_t> sizes = like.sizes().vec();
    if (!sizes.empty()) sizes[0] = number_at(bytes, 1 + 2 * i);
    const auto dtype = static_cast<at::ScalarType>(number_at(bytes, 2 + 2 * i));
    const auto length = c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
    // A copy, because the packed bytes may not be aligned for the tensor's dtype.
    state.emplace_back(name, bytes.narrow(0, at, length).clone().view(dtype).view(sizes));
    at += length;
  }
  return state;
}

/// Gathers the bytes of every rank; lengths may differ.
std::vector<at::Tensor> gather_any(const at::Tensor& bytes, const comm::Group& group) {
  const at::Tensor own = bytes.cpu();
  const std::string text(static_cast<const char*>(own.const_data_ptr()), own.nbytes());
  std::vector<at::Tensor> all;
  for (const std::string& theirs : comm::all_gather_strings(text, group)) {
    all.push_back(at::empty({static_cast<int64_t>(theirs.size())}, at::kByte));
    std::memcpy(all.back().mutable_data_ptr(), theirs.data(), theirs.size());
  }
  return all;
}

template <class Metrics>
Metrics reduced(const Metrics& metrics, const std::vector<std::string>& keys, const comm::Group& group) {
  const NamedTensors own = metrics.state();
  if (group.size() == 1 || own.empty()) return metrics;
  const at::Tensor bytes = pack(keys, own);
  const std::vector<at::Tensor> all =
      metrics.additive() ? comm::all_gather(bytes, group).unbind(0) : gather_any(bytes, group);
  const auto same = [&](const at::Tensor& theirs) { return number_at(theirs, 0) == number_at(all.front(), 0); };
  if (!std::all_of(all.begin(), all.end(), same))
    check_same_lines("reduce_metrics: the ranks hold different metrics", "metric", keys, group);

  Metrics result(metrics);
  result.reset();
  for (const at::Tensor& theirs : all) {
    Metrics of_rank(metrics);
    of_rank.load_state(unpack(theirs, own));
    result.merge(of_rank);
  }
  return result;
}

}  // namespace

metrics::MetricCollection reduce_metrics(const metrics::MetricCollection& metrics, const comm::Group& group) {
  return reduced(metrics, metrics.keys(), group);
}

metrics::Metric reduce_metrics(const metrics::Metric& metric, const comm::Group& group) {
  return reduced(metric, {metric.key()}, group);
}

}  // namespace bellows::parallel
