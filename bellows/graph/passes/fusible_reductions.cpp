#include <numeric>

#include "bellows/graph/passes/fusible_impl.h"

namespace bellows::graph::detail {
namespace {

using F = Function;

/// The dims of a reduction, as bits: those of an argument, all where it is left out.
uint64_t dims_of(const Maker& m, int argument) {
  const size_t rank = m.expression.loops.size();
  const uint64_t all = (uint64_t{1} << rank) - 1;
  if (argument < 0 || m.is_none(argument)) return all;
  const c10::IValue& value = m.constant(argument);
  uint64_t result = 0;
  const auto take = [&](int64_t dim) {
    if (rank) result |= uint64_t{1} << (dim < 0 ? dim + static_cast<int64_t>(rank) : dim);
  };
  if (value.isInt()) {
    take(value.toInt());
    return result;
  }
  for (const int64_t dim : value.toDimVector()) take(dim);
  return result ? result : all;
}

/// The loops that the dims of a reduction's result lie along.
std::vector<int> loops_left(const Maker& m, uint64_t reduced, size_t rank) {
  std::vector<int> loops;
  const bool keeps = rank == m.expression.loops.size();
  for (size_t i = 0; i < m.expression.loops.size(); ++i) {
    if (keeps || !(reduced >> i & 1)) loops.push_back(static_cast<int>(i));
  }
  return loops;
}

void store_reduced(Maker& m, size_t which, Ref term, uint64_t reduced) {
  const size_t rank = m.result(which).geometry.sizes.size();
  const auto loops = loops_left(m, reduced, rank);
  if (loops.size() != rank) m.bad = true;
  if (!m.bad) m.store(which, term, loops);
}

bool begin(Maker& m) {
  if (!m.has(0) || m.operand(0)->geometry.sizes.size() > 60) return false;
  m.set_loops(m.operand(0)->geometry);
  return true;
}

void sum(Maker& m, int dims_argument, bool mean) {
  const uint64_t dims = dims_of(m, dims_argument);
  const Ref total = m.reduce(F::sum, m.in(0), dims);
  store_reduced(m, 0, mean ? total / m.places(dims) : total, dims);
}

void extreme(Maker& m, F function, int dims_argument) {
  const uint64_t dims = dims_of(m, dims_argument);
  store_reduced(m, 0, m.reduce(function, m.in(0), dims), dims);
}

/// The mean, and the sum of squared distances from it.
std::pair<Ref, Ref> moments(Maker& m, Ref x, uint64_t dims) {
  const Ref mean = m.reduce(F::sum, x, dims) / m.places(dims), apart = x - mean;
  return {mean, m.reduce(F::sum, apart * apart, dims)};
}

void variance(Maker& m, std::string_view name) {
  const uint64_t dims = dims_of(m, 1);
  const c10::IValue& given = m.constant(2);
  if (!c10::isFloatingType(m.type) || m.instruction.arguments[2].number >= 0) {
    m.bad = true;
    return;
  }
  const double correction = given.isNone() ? 1 : given.isInt() ? static_cast<double>(given.toInt()) : given.toDouble();
  const auto two = moments(m, m.in(0), dims);
  const Ref spread = two.second / std::max(0.0, m.places(dims) - correction);
  store_reduced(m, 0, name == "aten::std.correction" ? call(F::sqrt, spread) : spread, dims);
  if (name == "aten::var_mean.correction") store_reduced(m, 1, two.first, dims);
}

void softmax(Maker& m, bool logarithm) {
  const uint64_t dims = dims_of(m, 1);
  const Ref x = m.in(0), apart = x - m.reduce(F::max, x, dims), power = call(F::exp, apart);
  const Ref total = m.reduce(F::sum, power, dims);
  m.store(0, logarithm ? apart - call(F::log, total) : power / total);
}

void softmax_backward(Maker& m, bool logarithm) {
  const uint64_t dims = dims_of(m, 2);
  const Ref grad = m.in(0), y = m.in(1);
  if (logarithm) return m.store(0, grad - call(F::exp, y) * m.reduce(F::sum, grad, dims));
  const Ref weighed = grad * y;
  m.store(0, weighed - y * m.reduce(F::sum, weighed, dims));
}

void mse_loss(Maker& m) {
  const int64_t reduction = m.constant(2).toInt();
  const Ref apart = m.in(0) - m.in(1), squares = apart * apart;
  if (reduction == 0) return m.store(0, squares);
  const uint64_t dims = dims_of(m, -1);
  const Ref total = m.reduce(F::sum, squares, dims);
  store_reduced(m, 0, reduction == 1 ? total / m.places(dims) : total, dims);
}

bool write_sum(Maker& m, std::string_view name) {
  if (name == "aten::sum") {
    sum(m, -1, false);
  } else if (name == "aten::mean") {
    sum(m, -1, true);
  } else if (name == "aten::sum.dim_IntList") {
    sum(m, 1, false);
  } else if (name == "aten::mean.dim") {
    sum(m, 1, true);
  } else if (name == "aten::amax") {
    extreme(m, F::max, 1);
  } else if (name == "aten::amin") {
    extreme(m, F::min, 1);
  } else if (name == "aten::max") {
    extreme(m, F::max, -1);
  } else if (name == "aten::min") {
    extreme(m, F::min, -1);
  } else if (name == "aten::var.correction" || name == "aten::std.correction" || name == "aten::var_mean.correction") {
    variance(m, name);
  } else {
    return false;
  }
  return true;
}

}  // namespace

bool write_reduction(Maker& m, std::string_view name) {
  if (m.instruction.arguments.empty() || !m.instruction.arguments[0].is_tensors() || !begin(m)) return false;
  if (write_sum(m, name)) return true;
  if (name == "aten::_softmax" || name == "aten::_log_softmax") {
    softmax(m, name == "aten::_log_softmax");
  } else if ((name == "aten::softmax.int" || name == "aten::log_softmax.int") &&
             m.is_none(2)) {  // whole under inference mode
    softmax(m, name == "aten::log_softmax.int");
  } else if (name == "aten::_softmax_backward_data" || name == "aten::_log_softmax_backward_data") {
    softmax_backward(m, name == "aten::_log_softmax_backward_data");
  } else if (name == "aten::mse_loss" && m.operand(1) && m.operand(1)->geometry.sizes == m.operand(0)->geometry.sizes) {
    mse_loss(m);
  } else {
    return false;
  }
  return true;
}

}  // namespace bellows::graph::detail
