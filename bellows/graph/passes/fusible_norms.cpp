#include <numeric>
#include <unordered_map>

#include "bellows/graph/passes/fusible_impl.h"

namespace bellows::graph::detail {
namespace {

using F = Function;

/// Which loops: dims of a normalization, or all but those.
uint64_t range(size_t first, size_t last) {
  return ((uint64_t{1} << (last - first)) - 1) << first;
}

std::vector<int> loop_range(size_t first, size_t last) {
  std::vector<int> loops(last - first);
  std::iota(loops.begin(), loops.end(), static_cast<int>(first));
  return loops;
}

struct Moments {
  Ref mean, variance;
};

Moments moments_over(Maker& m, Ref x, uint64_t dims) {
  const Ref mean = m.reduce(F::sum, x, dims) / m.places(dims), apart = x - mean;
  return {mean, m.reduce(F::sum, apart * apart, dims) / m.places(dims)};
}

/// Where the number of dims that are normalized is that of argument 1 or 2, a list of sizes.
size_t first_normalized(const Maker& m, int argument) {
  return m.expression.loops.size() - m.constant(argument).toDimVector().size();
}

void layer_norm(Maker& m) {
  const size_t rank = m.expression.loops.size(), first = first_normalized(m, 1);
  const auto inner = loop_range(first, rank), all = loop_range(0, rank);
  const Ref x = m.in(0);
  const Moments found = moments_over(m, x, range(first, rank));
  const Ref scale = call(F::rsqrt, found.variance + m.number(4));
  Ref y = (x - found.mean) * scale;
  if (m.has(2)) y = y * m.in(2, inner);
  if (m.has(3)) y = y + m.in(3, inner);
  m.store(0, y, all);
  if (m.instruction.results.size() == 1) return;
  m.store(1, found.mean, all);
  m.store(2, scale, all);
}

void layer_norm_backward(Maker& m) {
  const size_t rank = m.expression.loops.size(), first = first_normalized(m, 2);
  const auto inner = loop_range(first, rank), all = loop_range(0, rank);
  const uint64_t rows = range(0, first), row = range(first, rank);
  const Ref grad = m.in(0), scale = m.in(4, all), normal = (m.in(1) - m.in(3, all)) * scale;
  const Ref weighed = m.has(5) ? grad * m.in(5, inner) : grad;
  const Ref total = m.reduce(F::sum, weighed, row), along = m.reduce(F::sum, weighed * normal, row);
  m.store(0, scale * (weighed - (total + normal * along) / m.places(row)), all);
  m.store(1, m.reduce(F::sum, grad * normal, rows), inner);
  m.store(2, m.reduce(F::sum, grad, rows), inner);
}

/// Of all loops but that of the channels.
uint64_t but_channels(const Maker& m) {
  return range(0, m.expression.loops.size()) & ~uint64_t{2};
}

constexpr int channel_loops[] = {1};

void batch_norm(Maker& m) {
  const auto all = loop_range(0, m.expression.loops.size());
  const Ref x = m.in(0);
  Ref mean = x, scale = x;
  if (m.constant(5).toBool()) {
    const uint64_t dims = but_channels(m);
    const Moments found = moments_over(m, x, dims);
    mean = found.mean;
    scale = call(F::rsqrt, found.variance + m.number(7));
    m.store(1, mean, channel_loops);
    m.store(2, scale, channel_loops);
    const double count = m.places(dims);
    const Ref part = m.number(6), unbiased = found.variance * (count / (count - 1));
    if (m.has(3)) m.update(3, (1.0 - part) * m.in(3, channel_loops) + part * mean, channel_loops);
    if (m.has(4)) m.update(4, (1.0 - part) * m.in(4, channel_loops) + part * unbiased, channel_loops);
  } else {
    mean = m.in(3, channel_loops);
    const Ref variance = m.in(4, channel_loops);
    scale = call(F::rsqrt, variance + m.number(7));
    m.update(3, mean, channel_loops);  // as they were
    m.update(4, variance, channel_loops);
  }
  Ref y = (x - mean) * scale;
  if (m.has(1)) y = y * m.in(1, channel_loops);
  if (m.has(2)) y = y + m.in(2, channel_loops);
  m.store(0, y, all);
}

void batch_norm_without_training(Maker& m) {
  const Ref scale = call(F::rsqrt, m.in(4, channel_loops) + m.number(6));
  Ref y = (m.in(0) - m.in(3, channel_loops)) * scale;
  if (m.has(1)) y = y * m.in(1, channel_loops);
  if (m.has(2)) y = y + m.in(2, channel_loops);
  m.store(0, y, loop_range(0, m.expression.loops.size()));
}

void batch_norm_backward(Maker& m) {
  const auto all = loop_range(0, m.expression.loops.size());
  const bool train = m.constant(7).toBool();
  const uint64_t dims = but_channels(m);
  const Ref grad = m.in(0), mean = m.in(train ? 5 : 3, channel_loops);
  const Ref scale = train ? m.in(6, channel_loops) : call(F::rsqrt, m.in(4, channel_loops) + m.number(8));
  const Ref normal = (m.in(1) - mean) * scale;
  const Ref total = m.reduce(F::sum, grad, dims), along = m.reduce(F::sum, grad * normal, dims);
  const Ref factor = m.has(2) ? scale * m.in(2, channel_loops) : scale;
  const double count = m.places(dims);
  m.store(0, train ? factor * (grad - (total + normal * along) / count) : factor * grad, all);
  m.store(1, along, channel_loops);
  m.store(2, total, channel_loops);
}

}  // namespace

bool write_normalization(Maker& m, std::string_view name) {
  static const std::unordered_map<std::string_view, void (*)(Maker&)> known{
      {"aten::native_layer_norm", layer_norm},
      {"aten::layer_norm", layer_norm},  // whole under inference mode
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::native_batch_norm", batch_norm},
      {"aten::_native_batch_norm_legit_no_training", batch_norm_without_training},
      {"aten::native_batch_norm_backward", batch_norm_backward},
  };
  const auto found = known.find(name);
  if (found == known.end() || !m.has(0)) return false;
  const Geometry& shape = m.operand(name.ends_with("backward") ? 1 : 0)->geometry;
  if (shape.sizes.size() > 60 || (name.find("batch") != std::string_view::npos && shape.sizes.size() < 2)) return false;
  m.type = compute_type(shape.dtype.toScalarType());
  m.set_loops(shape);
  found->second(m);
  return true;
}

}  // namespace bellows::graph::detail
