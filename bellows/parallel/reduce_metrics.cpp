#include "bellows/parallel/reduce_metrics.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>

#include "bellows/comm/collectives.h"
#include "bellows/parallel/same_model.h"

namespace bellows::parallel {

namespace {

/// Rows and dtype of each tensor of a rank's state: all that the ranks' states differ in before their values.
using StateShape = std::vector<std::pair<int64_t, at::ScalarType>>;

StateShape shape_of(const NamedTensors& state) {
  StateShape shape;
  shape.reserve(state.size());
  for (const auto& [name, tensor] : state) {
    shape.emplace_back(tensor.dim() > 0 ? tensor.size(0) : 1, tensor.scalar_type());
  }
  return shape;
}

at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.contiguous().reshape({-1}).view(at::kByte);
}

/// A mark of the metrics, and the state's tensors one behind the other.
at::Tensor pack(const std::string& keys, const NamedTensors& state) {
  const at::TensorOptions where = state.front().second.options();
  std::vector<at::Tensor> parts;
  parts.reserve(state.size() + 1);
  const auto mark = static_cast<int64_t>(std::hash<std::string>{}(keys));
  parts.push_back(as_bytes(at::full({1}, mark, where.dtype(at::kLong))));
  for (const auto& [name, tensor] : state) parts.push_back(as_bytes(tensor));
  return at::cat(parts);
}

/// The state of a rank, from its bytes; sizes behind the first are those of `own`.
NamedTensors unpack(const at::Tensor& bytes, const StateShape& shape, const NamedTensors& own) {
  NamedTensors state;
  int64_t at = sizeof(int64_t);
  for (size_t i = 0; i < own.size(); ++i) {
    std::vector<int64_t> sizes = own[i].second.sizes().vec();
    if (!sizes.empty()) sizes[0] = shape[i].first;
    const auto length = c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(shape[i].second));
    // A copy: within the packed bytes the tensor need not stand where its type may.
    state.emplace_back(own[i].first, bytes.narrow(0, at, length).clone().view(shape[i].second).view(sizes));
    at += length;
  }
  return state;
}

std::vector<StateShape> shapes_of_all(const StateShape& own, const at::TensorOptions& where, const comm::Group& group) {
  const auto count = static_cast<int64_t>(own.size());
  at::Tensor mine = at::empty({count, 2}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    mine[i][0] = own[static_cast<size_t>(i)].first;
    mine[i][1] = static_cast<int64_t>(own[static_cast<size_t>(i)].second);
  }
  const at::Tensor all = comm::all_gather(mine.to(where.device()), group).cpu();
  std::vector<StateShape> shapes(static_cast<size_t>(group.size()), own);
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    for (int64_t i = 0; i < count; ++i) {
      shapes[static_cast<size_t>(rank)][static_cast<size_t>(i)] = {
          all[rank][i][0].item<int64_t>(), static_cast<at::ScalarType>(all[rank][i][1].item<int64_t>())};
    }
  }
  return shapes;
}

/// How many bytes pack() makes of a state of that shape.
int64_t packed_bytes(const StateShape& shape, const NamedTensors& own) {
  int64_t bytes = sizeof(int64_t);
  for (size_t i = 0; i < own.size(); ++i) {
    const int64_t width = own[i].second.dim() > 0 ? c10::multiply_integers(own[i].second.sizes().slice(1)) : 1;
    bytes += shape[i].first * width * static_cast<int64_t>(c10::elementSize(shape[i].second));
  }
  return bytes;
}

template <class Metrics>
Metrics reduced(const Metrics& metrics, const std::vector<std::string>& keys, const comm::Group& group) {
  const NamedTensors own = metrics.state();
  if (group.size() == 1 || own.empty()) return metrics;
  const char* differ = "reduce_metrics: the ranks hold different metrics";
  std::vector<StateShape> shapes(static_cast<size_t>(group.size()), shape_of(own));
  at::Tensor bytes = pack(c10::Join("\n", keys), own);
  if (!metrics.additive()) {
    check_same_lines(differ, keys, group);
    shapes = shapes_of_all(shapes.front(), bytes.options(), group);
    int64_t longest = 0;
    for (const StateShape& shape : shapes) longest = std::max(longest, packed_bytes(shape, own));
    bytes = at::constant_pad_nd(bytes, {0, longest - bytes.numel()});
  }
  const at::Tensor all = comm::all_gather(bytes, group);
  const at::Tensor marks = all.narrow(1, 0, sizeof(int64_t));
  if (!marks.eq(marks[0]).all().template item<bool>()) check_same_lines(differ, keys, group);

  Metrics result(metrics);
  result.reset();
  for (int rank = 0; rank < group.size(); ++rank) {
    Metrics theirs(metrics);
    theirs.load_state(unpack(all[rank], shapes[static_cast<size_t>(rank)], own));
    result.merge(theirs);
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
