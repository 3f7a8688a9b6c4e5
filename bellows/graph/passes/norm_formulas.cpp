#include "bellows/graph/passes/norm_formulas.h"

#include <numeric>
#include <span>
#include <unordered_map>
#include <vector>

namespace bellows::graph::detail {
namespace {

using F = Function;

/// Returns: a mask of the loops from `first` to before `last`
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

/// Returns: y · weight + bias. Both are arguments and optional, with their dims along `loops`.
Ref scaled_and_shifted(Maker& m, Ref y, int weight, int bias, Maker::Loops loops) {
  if (m.has(weight)) y = y * m.in(weight, loops);
  if (m.has(bias)) y = y + m.in(bias, loops);
  return y;
}

/// Returns: the gradient of factor · normal(x), where `normal` has mean 0 and variance 1 over `dims`
/// Params: grad – of the result
Ref input_gradient(Maker& m, Ref grad, Ref normal, Ref factor, uint64_t dims) {
  const Ref total = m.reduce(F::sum, grad, dims), along = m.reduce(F::sum, grad * normal, dims);
  return factor * (grad - (total + normal * along) / m.places(dims));
}

/// Returns: the first normalized dim. The argument is a list of sizes, one for each normalized dim.
size_t first_normalized(const Maker& m, int argument) {
  return m.expression.loops.size() - m.constant(argument).toDimVector().size();
}

void layer_norm(Maker& m) {
  const size_t rank = m.expression.loops.size(), first = first_normalized(m, 1);
  const auto inner = loop_range(first, rank), all = loop_range(0, rank);
  const Ref x = m.in(0);
  const Moments found = moments_over(m, x, range(first, rank));
  const Ref scale = call(F::rsqrt, found.variance + m.number(4));
  m.store(0, scaled_and_shifted(m, (x - found.mean) * scale, 2, 3, inner), all);
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
  m.store(0, input_gradient(m, weighed, normal, scale, row), all);
  m.store(1, m.reduce(F::sum, grad * normal, rows), inner);
  m.store(2, m.reduce(F::sum, grad, rows), inner);
}

/// Returns: a mask of all loops except that of the channels
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
    m.update(3, mean, channel_loops);  // unchanged
    m.update(4, variance, channel_loops);
  }
  m.store(0, scaled_and_shifted(m, (x - mean) * scale, 1, 2, channel_loops), all);
}

void batch_norm_without_training(Maker& m) {
  const Ref scale = call(F::rsqrt, m.in(4, channel_loops) + m.number(6));
  const Ref normal = (m.in(0) - m.in(3, channel_loops)) * scale;
  m.store(0, scaled_and_shifted(m, normal, 1, 2, channel_loops), loop_range(0, m.expression.loops.size()));
}

void batch_norm_backward(Maker& m) {
  const auto all = loop_range(0, m.expression.loops.size());
  const bool train = m.constant(7).toBool();
  const uint64_t dims = but_channels(m);
  const Ref grad = m.in(0), mean = m.in(train ? 5 : 3, channel_loops);
  const Ref scale = train ? m.in(6, channel_loops) : call(F::rsqrt, m.in(4, channel_loops) + m.number(8));
  const Ref normal = (m.in(1) - mean) * scale;
  const Ref factor = m.has(2) ? scale * m.in(2, channel_loops) : scale;
  m.store(0, train ? input_gradient(m, grad, normal, factor, dims) : factor * grad, all);
  m.store(1, m.reduce(F::sum, grad * normal, dims), channel_loops);
  m.store(2, m.reduce(F::sum, grad, dims), channel_loops);
}

constexpr int sample_channel_loops[] = {0, 1};

void instance_norm(Maker& m) {
  const size_t rank = m.expression.loops.size();
  const Ref x = m.in(0);
  const Moments found = moments_over(m, x, range(2, rank));
  const Ref scale = call(F::rsqrt, found.variance + m.number(3));
  m.store(0, scaled_and_shifted(m, (x - found.mean) * scale, 1, 2, sample_channel_loops), loop_range(0, rank));
  m.store(1, found.mean, sample_channel_loops);
  m.store(2, scale, sample_channel_loops);
}

void instance_norm_backward(Maker& m) {
  const size_t rank = m.expression.loops.size();
  const uint64_t dims = range(2, rank);
  const Ref grad = m.in(0), scale = m.in(4, sample_channel_loops);
  const Ref normal = (m.in(1) - m.in(3, sample_channel_loops)) * scale;
  const Ref factor = m.has(2) ? scale * m.in(2, sample_channel_loops) : scale;
  m.store(0, input_gradient(m, grad, normal, factor, dims), loop_range(0, rank));
  m.store(1, m.reduce(F::sum, grad * normal, dims), sample_channel_loops);
  m.store(2, m.reduce(F::sum, grad, dims), sample_channel_loops);
}

/// The same memory with one dim split into groups of equal sizes.
Geometry in_groups(const Geometry& geometry, size_t dim, int64_t groups) {
  Geometry made = geometry;
  const int64_t size = geometry.sizes[dim] / groups, stride = geometry.strides[dim];
  made.sizes[dim] = size;
  made.sizes.insert(made.sizes.begin() + static_cast<std::ptrdiff_t>(dim), groups);
  made.strides.insert(made.strides.begin() + static_cast<std::ptrdiff_t>(dim), size * stride);
  return made;
}

/// Loops over samples, groups, the channels of a group, and places.
class GroupNorm {
 public:
  /// Params: image, weight, groups – arguments
  GroupNorm(Maker& m, int image, int weight, int groups) : m_(m), weight_(weight) {
    const c10::IValue& count = m.constant(groups);
    const Geometry& geometry = m.operand(image)->geometry;
    // The operator computes with the sizes in its arguments, even if the image has other sizes.
    const c10::IValue &samples = m.constant(groups - 3), &channels = m.constant(groups - 2);
    if (!count.isInt() || geometry.sizes.size() < 2 || geometry.sizes[1] % count.toInt() != 0 ||
        samples != c10::IValue(geometry.sizes[0]) || channels != c10::IValue(geometry.sizes[1])) {
      m.bad = true;
      return;
    }
    groups_ = count.toInt();
    m.set_loops(in_groups(geometry, 1, groups_));
    rank_ = m.expression.loops.size();
  }

  void forward() {
    const Ref x = image(0);
    const Moments found = moments_over(m_, x, range(2, rank_));
    const Ref scale = call(F::rsqrt, found.variance + m_.number(7));
    Ref y = (x - found.mean) * scale;
    if (m_.has(weight_)) y = y * of_channels(weight_);
    if (m_.has(2)) y = y + of_channels(2);
    put_image(y);
    m_.store(1, found.mean, sample_channel_loops);
    m_.store(2, scale, sample_channel_loops);
  }

  void backward() {
    const Ref grad = image(0), scale = m_.in(3, sample_channel_loops);
    const Ref normal = (image(1) - m_.in(2, sample_channel_loops)) * scale;
    const Ref weighed = m_.has(weight_) ? grad * of_channels(weight_) : grad;
    const uint64_t group = range(2, rank_), channel = range(0, rank_) & ~range(1, 3);
    put_image(input_gradient(m_, weighed, normal, scale, group));
    put_channels(1, m_.reduce(F::sum, grad * normal, channel));
    put_channels(2, m_.reduce(F::sum, grad, channel));
  }

 private:
  static constexpr int channel_loops_[] = {1, 2};

  Ref image(int argument) {
    const Geometry seen = in_groups(m_.operand(argument)->geometry, 1, groups_);
    return m_.cast(m_.raw_as(argument, seen, loop_range(0, rank_)), m_.type);
  }
  Ref of_channels(int argument) {
    const Geometry seen = in_groups(m_.operand(argument)->geometry, 0, groups_);
    return m_.cast(m_.raw_as(argument, seen, channel_loops_), m_.type);
  }
  void put_image(Ref term) {
    if (m_.result(0).value != no_value) m_.store_part(0, in_groups(m_.result(0).geometry, 1, groups_), term);
  }
  void put_channels(size_t result, Ref term) {
    if (m_.result(result).value == no_value) return;
    m_.store_part(result, in_groups(m_.result(result).geometry, 0, groups_), term, channel_loops_);
  }

  Maker& m_;
  const int weight_;
  int64_t groups_ = 1;
  size_t rank_ = 0;
};

void group_norm(Maker& m) {
  GroupNorm norm(m, 0, 1, 6);
  if (!m.bad) norm.forward();
}

void group_norm_backward(Maker& m) {
  GroupNorm norm(m, 1, 4, 8);
  if (!m.bad) norm.backward();
}

}  // namespace

bool write_normalization(Maker& m, std::string_view name) {
  static const std::unordered_map<std::string_view, void (*)(Maker&)> known{
      {"aten::native_layer_norm", layer_norm},
      {"aten::layer_norm", layer_norm},  // composite in inference mode
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::native_batch_norm", batch_norm},
      {"aten::_native_batch_norm_legit_no_training", batch_norm_without_training},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::native_group_norm", group_norm},
      {"aten::native_group_norm_backward", group_norm_backward},
      {"bellows::instance_norm", instance_norm},
      {"bellows::instance_norm_backward", instance_norm_backward},
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
