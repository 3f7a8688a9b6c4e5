#include <algorithm>

#include "bellows/export/onnx/call.h"
#include "bellows/export/onnx/operators.h"
#include "bellows/export/onnx/shapes.h"

namespace bellows::onnx_export {

namespace {

using c10::ScalarType;

/// The dims that an operator reduces: all if its list is absent or empty.
std::vector<int64_t> reduced(Call& call, size_t argument) {
  std::vector<int64_t> dims = call.dims(argument, call.rank(0));
  return dims.empty() ? all_dims(call.rank(0)) : dims;
}

/// ReduceSum takes its dims as a tensor since opset 13, the other reductions only since opset 18.
std::string reduce(Call& call, const std::string& op, const std::string& x, const std::vector<int64_t>& dims,
                   bool keep) {
  if (dims.empty()) return x;
  const Attribute keepdims{"keepdims", static_cast<int64_t>(keep)};
  if (op == "ReduceSum") return call.node(op, {x, call.integers_tensor(dims)}, {keepdims});
  return call.node(op, {x}, {{"axes", dims}, keepdims});
}

void reduce_dims(Call& call) {
  call.result(reduce(call, call.onnx(), call.tensor(0, call.result_dtype()), reduced(call, 1), call.flag(2)));
}

void reduce_all(Call& call) {
  call.result(reduce(call, call.onnx(), call.tensor(0, call.result_dtype()), all_dims(call.rank(0)), false));
}

void prod_dim(Call& call) {
  call.result(
      reduce(call, "ReduceProd", call.tensor(0, call.result_dtype()), {call.dim(1, call.rank(0))}, call.flag(2)));
}

/// all and any: the least or the largest of 0 and 1.
void reduce_truth(Call& call) {
  std::vector<int64_t> dims = all_dims(call.rank(0));
  bool keep = false;
  if (call.name().ends_with(".dim")) {
    dims = {call.dim(1, call.rank(0))};
    keep = call.flag(2);
  } else if (call.name().ends_with(".dims")) {
    dims = reduced(call, 1);
    keep = call.flag(2);
  }
  const std::string x = call.cast(call.tensor(0, c10::kBool), c10::kBool, c10::kInt);
  call.result(call.cast(reduce(call, call.onnx(), x, dims, keep), c10::kInt, c10::kBool));
}

/// The largest or smallest element of a dim, and its position.
void extreme_dim(Call& call) {
  const int64_t dim = call.dim(1, call.rank(0));
  const bool largest = call.name().starts_with("aten::max");
  const std::string x = call.tensor(0);
  call.result(0, reduce(call, largest ? "ReduceMax" : "ReduceMin", x, {dim}, call.flag(2)));
  call.result(1, call.node(largest ? "ArgMax" : "ArgMin", {x},
                           {{"axis", dim}, {"keepdims", static_cast<int64_t>(call.flag(2))}}));
}

void position(Call& call) {
  std::string x = call.tensor(0);
  if (call.has(1)) {
    call.result(call.node(call.onnx(), {x},
                          {{"axis", call.dim(1, call.rank(0))}, {"keepdims", static_cast<int64_t>(call.flag(2))}}));
    return;
  }
  x = call.node("Reshape", {x, call.integers_tensor({-1})});
  call.result(call.node(call.onnx(), {x}, {{"axis", int64_t{0}}, {"keepdims", int64_t{0}}}));
}

/// Variance: the squared distances from the mean, divided by their number minus the correction.
std::string variance(Call& call, std::string& mean, bool keep) {
  const ScalarType dtype = call.result_dtype();
  const std::vector<int64_t> dims = reduced(call, 1);
  const std::string x = call.tensor(0), kept_mean = reduce(call, "ReduceMean", x, dims, true);
  const std::string distance = call.node("Sub", {x, kept_mean});
  const std::string sum = reduce(call, "ReduceSum", call.node("Mul", {distance, distance}), dims, keep);
  const double correction = call.has(2) ? call.number(2) : 1;
  Translation& translation = call.translation();
  const Varied count = product_of(call.sizes(0), dims, translation.count());
  std::string divisor = count.constant() ? call.constant(static_cast<double>(count.first()) - correction, dtype)
                                         : translation.scalar_of(count, dtype);
  if (!count.constant() && correction != 0) divisor = call.node("Sub", {divisor, call.constant(correction, dtype)});
  mean = keep ? kept_mean : reduce(call, "ReduceMean", x, dims, false);
  return call.node("Div", {sum, divisor});
}

void var(Call& call) {
  std::string mean;
  call.result(variance(call, mean, call.flag(3)));
}
void std_deviation(Call& call) {
  std::string mean;
  call.result(call.node("Sqrt", {variance(call, mean, call.flag(3))}));
}
void var_mean(Call& call) {
  std::string mean;
  call.result(0, variance(call, mean, call.flag(3)));
  call.result(1, mean);
}

void vector_norm(Call& call) {
  const double order = call.has(1) ? call.number(1) : 2;
  if (order != 1 && order != 2)
    call.fail("a norm of order other than 1 and 2 has no mapping", "Compute it with abs() and pow().");
  const ScalarType dtype = call.result_dtype();
  call.result(
      reduce(call, order == 1 ? "ReduceL1" : "ReduceL2", call.tensor(0, dtype), reduced(call, 2), call.flag(3)));
}

void cumsum(Call& call) {
  const std::string axis = call.translation().builder().integer(call.dim(1, call.rank(0)));
  call.result(call.node("CumSum", {call.tensor(0, call.result_dtype()), axis}));
}

/// The k largest or smallest elements of a dim.
void top_k(Call& call) {
  const std::string k = call.translation().size(call.varied(1));
  const auto made = call.translation().builder().add("TopK", {call.tensor(0), k},
                                                     {{"axis", call.dim(2, call.rank(0))},
                                                      {"largest", static_cast<int64_t>(call.flag(3))},
                                                      {"sorted", static_cast<int64_t>(call.flag(4))}},
                                                     2);
  call.result(0, made[0]);
  call.result(1, made[1]);
}

void sort(Call& call) {
  const bool stable = call.name().ends_with(".stable");
  const size_t dim_argument = stable ? 2 : 1;
  const int64_t dim = call.dim(dim_argument, call.rank(0));
  const auto made = call.translation().builder().add(
      "TopK", {call.tensor(0), call.translation().size(call.sizes(0).at(dim))},
      {{"axis", dim}, {"largest", static_cast<int64_t>(call.flag(dim_argument + 1))}, {"sorted", int64_t{1}}}, 2);
  call.result(0, made[0]);
  call.result(1, made[1]);
}

void softmax(Call& call) {
  const std::string x = call.tensor(0, call.result_dtype());
  call.result(call.node(call.onnx(), {x}, {{"axis", call.dim(1, call.rank(0))}}));
}

constexpr OperatorMapping reduction_operators[] = {
    {"aten::_log_softmax", "LogSoftmax", softmax},
    {"aten::_softmax", "Softmax", softmax},
    {"aten::all", "ReduceMin", reduce_truth},
    {"aten::all.dim", "ReduceMin", reduce_truth},
    {"aten::all.dims", "ReduceMin", reduce_truth},
    {"aten::amax", "ReduceMax", reduce_dims},
    {"aten::amin", "ReduceMin", reduce_dims},
    {"aten::any", "ReduceMax", reduce_truth},
    {"aten::any.dim", "ReduceMax", reduce_truth},
    {"aten::any.dims", "ReduceMax", reduce_truth},
    {"aten::argmax", "ArgMax", position},
    {"aten::argmin", "ArgMin", position},
    {"aten::cumsum", "CumSum", cumsum},
    {"aten::linalg_vector_norm", "ReduceL1 or ReduceL2", vector_norm},
    {"aten::logsumexp", "ReduceLogSumExp", reduce_dims},
    {"aten::max", "ReduceMax", reduce_all},
    {"aten::max.dim", "ArgMax, ReduceMax", extreme_dim},
    {"aten::mean", "ReduceMean", reduce_all},
    {"aten::mean.dim", "ReduceMean", reduce_dims},
    {"aten::min", "ReduceMin", reduce_all},
    {"aten::min.dim", "ArgMin, ReduceMin", extreme_dim},
    {"aten::prod", "ReduceProd", reduce_all},
    {"aten::prod.dim_int", "ReduceProd", prod_dim},
    {"aten::sort", "TopK", sort},
    {"aten::sort.stable", "TopK", sort},
    {"aten::std.correction", "ReduceMean, ReduceSum, Sqrt", std_deviation},
    {"aten::sum", "ReduceSum", reduce_all},
    {"aten::sum.dim_IntList", "ReduceSum", reduce_dims},
    {"aten::topk", "TopK", top_k},
    {"aten::var.correction", "ReduceMean, ReduceSum", var},
    {"aten::var_mean.correction", "ReduceMean, ReduceSum", var_mean},
};

}  // namespace

std::span<const OperatorMapping> reduction_mappings() {
  return reduction_operators;
}

}  // namespace bellows::onnx_export
