#include "bellows/compile/attention.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "bellows/compile/attention_kernel.h"
#include "bellows/compile/flash_attention.h"
#include "bellows/compile/quantized_attention.h"
#include "bellows/graph/program/program_edit.h"

namespace bellows::compile_detail {
namespace {

using graph::Geometry;
using graph::Instruction;
using graph::Operand;
using graph::Program;
using graph::ValueId;
using graph::detail::calls;
using graph::detail::is_row_major;
using graph::detail::is_simple;
using graph::detail::operand_of;
using graph::detail::transposed;
using graph::detail::Uses;

bool is_float(const Operand& operand) {
  return operand.geometry.device.is_cpu() && operand.geometry.dtype == caffe2::TypeMeta::Make<float>();
}

/// True if `seen` is the batch [n, rows, columns] of a row-major value with all matrices transposed.
bool is_transposed(const Geometry& seen) {
  return seen.sizes.size() == 3 && is_row_major(transposed(seen));
}

/// A constant that is a number.
std::optional<double> number_of(const c10::IValue& constant) {
  if (constant.isInt()) return static_cast<double>(constant.toInt());
  return constant.isDouble() ? std::make_optional(constant.toDouble()) : std::nullopt;
}

/// The factor of a multiplication or division by a constant.
std::optional<double> factor_of(const Instruction& one) {
  const bool divides = calls(one, "aten::div.Scalar");
  if ((!divides && !calls(one, "aten::mul.Scalar")) || !is_simple(one)) return {};
  const auto value = number_of(one.arguments[1].constant);
  return value && divides ? 1 / *value : value;
}

class AttentionFinder {
 public:
  explicit AttentionFinder(const Program& program) : program_(program), uses_(program) {}

  /// Params: at – a softmax's backward operator
  std::optional<FusedAttention> backward(int at);
  /// Params: at – the second bmm
  std::optional<FusedAttention> forward(int at);

 private:
  const Instruction& instruction(int at) const { return program_.instructions[at]; }
  const Operand& result(int at) const { return instruction(at).results[0].operands[0]; }
  bool is(int at, const char* op) const { return at >= 0 && calls(instruction(at), op) && is_simple(instruction(at)); }
  bool covers(int at) const {
    return is_row_major(result(at).geometry) &&
           graph::detail::covers(result(at).geometry, program_.values[result(at).value].nbytes) && is_float(result(at));
  }
  /// Returns the instruction that computed the operand if both see it row-major and only `reader` reads it.
  int maker(const Operand& read, int reader) const {
    const int made = uses_.maker[read.value];
    const bool found = made >= 0 && uses_.read_only_by(read.value, reader) && is_simple(instruction(made)) &&
                       covers(made) && is_row_major(read.geometry);
    return found ? made : -1;
  }
  bool is_softmax(int at) const;
  std::optional<FusedAttention::Mask> mask_of(int at, size_t& chained) const;
  std::optional<bool> is_stored(ValueId value, const FusedAttention& found) const;
  int before_dropout(int drops, FusedAttention& found) const;
  bool product(int at, FusedAttention& found) const;
  bool logits(int softmax, FusedAttention& found) const;
  bool below_softmax(int at, FusedAttention& found);
  bool gradients(ValueId logits, FusedAttention& found);
  void value_gradient(const Operand& weights, FusedAttention& found);
  int dropped_weights(const Operand& weights, const Operand& dropout) const;
  bool fits(const FusedAttention& found) const;

  const Program& program_;
  Uses uses_;
};

bool AttentionFinder::is_softmax(int at) const {
  if ((!is(at, "aten::_softmax") && !is(at, "aten::_safe_softmax")) || !covers(at)) return false;
  const auto dims = static_cast<int64_t>(result(at).geometry.sizes.size());
  const int64_t dim = instruction(at).arguments[1].constant.toInt();
  return dims >= 3 && dims <= 4 && (dim == -1 || dim == dims - 1);
}

/// Params: chained – receives the argument that is masked
std::optional<FusedAttention::Mask> AttentionFinder::mask_of(int at, size_t& chained) const {
  FusedAttention::Mask made{.logical = result(at).geometry.sizes};
  const Instruction& one = instruction(at);
  if (is(at, "aten::add.Tensor")) {
    if (one.arguments[2].constant != c10::IValue(1)) return {};
    chained =
        operand_of(one, 0).geometry.sizes == made.logical && uses_.read_only_by(operand_of(one, 0).value, at) ? 0 : 1;
    made.mask = operand_of(one, 1 - chained);
    made.adds = true;
    if (!is_float(made.mask)) return {};
  } else if (is(at, "aten::masked_fill.Scalar")) {
    chained = 0;
    made.mask = operand_of(one, 1);
    const auto value = number_of(one.arguments[2].constant);
    if (!value) return {};
    made.value = static_cast<float>(*value);
  } else if (is(at, "aten::where.self")) {
    made.inverted = !operand_of(one, 1).geometry.sizes.empty();
    chained = made.inverted ? 1 : 2;
    made.mask = operand_of(one, 0);
    made.replacement = operand_of(one, made.inverted ? 2 : 1);
    if (!made.replacement.geometry.sizes.empty() || !is_float(made.replacement)) return {};
  } else {
    return {};
  }
  const bool is_bool = made.mask.geometry.dtype == caffe2::TypeMeta::Make<bool>();
  const bool whole = operand_of(one, chained).geometry.sizes == made.logical;
  return whole && (made.adds || is_bool) && made.mask.geometry.device.is_cpu() ? std::make_optional(made)
                                                                               : std::nullopt;
}

/// Matches the matmul of queries and keys: bmm, or baddbmm, which also scales and adds a mask.
bool AttentionFinder::product(int at, FusedAttention& found) const {
  const Instruction& one = instruction(at);
  const size_t first = is(at, "aten::baddbmm") ? 1 : 0;
  if (first == 1) {
    const auto beta = number_of(one.arguments[3].constant), alpha = number_of(one.arguments[4].constant);
    const Operand& added = operand_of(one, 0);
    if (!alpha || !beta || (*beta != 0 && (*beta != 1 || found.scale != 1 || !is_float(added)))) return false;
    if (*beta == 1)
      found.masks.insert(found.masks.begin(), {.mask = added, .logical = result(at).geometry.sizes, .adds = true});
    found.scale *= *alpha;
  }
  found.replaced.push_back(at);
  found.query = operand_of(one, first);
  found.key = operand_of(one, first + 1);
  return true;
}

/// Matches the logits of a softmax: a matmul, scaling and masks.
bool AttentionFinder::logits(int softmax, FusedAttention& found) const {
  int reader = softmax, at = maker(operand_of(instruction(softmax), 0), softmax);
  while (at >= 0 && !is(at, "aten::bmm") && !is(at, "aten::baddbmm")) {
    found.replaced.push_back(at);
    size_t chained = 0;
    if (const auto factor = factor_of(instruction(at)))
      found.scale *= *factor;
    else if (auto mask = found.scale == 1 ? mask_of(at, chained) : std::nullopt)
      found.masks.insert(found.masks.begin(), std::move(*mask));
    else
      return false;
    reader = at;
    at = maker(operand_of(instruction(reader), chained), reader);
  }
  return at >= 0 && product(at, found);
}

/// Returns whether the kernel must store a value, or nothing if the value changes or is read before the kernel runs.
std::optional<bool> AttentionFinder::is_stored(ValueId value, const FusedAttention& found) const {
  if (uses_.overwriter[value] >= 0 || uses_.update[value]) return {};
  bool stored = uses_.outputs[value] > 0;
  for (const int reader : uses_.readers[value]) {
    const bool inside = std::find(found.replaced.begin(), found.replaced.end(), reader) != found.replaced.end();
    if (!inside && reader < found.place) return {};
    stored |= !inside;
  }
  return stored;
}

/// Matches the multiplication by a dropout mask in the forward pass. Returns the instruction that computes its other
/// operand, or -1.
int AttentionFinder::before_dropout(int drops, FusedAttention& found) const {
  if (!covers(drops)) return -1;
  found.replaced.push_back(drops);
  const auto stored = is_stored(result(drops).value, found);
  if (!stored) return -1;
  if (*stored) found.dropped = result(drops);
  const Operand &first = operand_of(instruction(drops), 0), &second = operand_of(instruction(drops), 1);
  const bool weights_first = is_softmax(uses_.maker[first.value]);
  found.dropout = weights_first ? second : first;
  const Operand& weights = weights_first ? first : second;
  return first.geometry.sizes == second.geometry.sizes && is_row_major(weights.geometry) ? uses_.maker[weights.value]
                                                                                         : -1;
}

std::optional<FusedAttention> AttentionFinder::forward(int at) {
  if (!is(at, "aten::bmm") || !covers(at)) return {};
  FusedAttention found{.place = at, .replaced = {at}};
  const Operand& left = operand_of(instruction(at), 0);
  if (!is_row_major(left.geometry)) return {};
  int softmax = uses_.maker[left.value];
  if (is(softmax, "aten::mul.Tensor")) softmax = before_dropout(softmax, found);
  if (!is_softmax(softmax)) return {};
  found.replaced.push_back(softmax);
  found.empty_rows_are_zero = is(softmax, "aten::_safe_softmax");
  found.value = operand_of(instruction(at), 1);
  found.weights = result(softmax);
  found.result = result(at);
  const auto stored = is_stored(found.weights.value, found);
  if (!stored || !logits(softmax, found)) return {};
  found.stores_weights = *stored;
  found.sizes(left.geometry.sizes);
  return fits(found) ? std::make_optional(found) : std::nullopt;
}

/// Returns the multiplication of attention weights by a dropout mask, or -1.
int AttentionFinder::dropped_weights(const Operand& weights, const Operand& dropout) const {
  for (const int reader : uses_.readers[weights.value]) {
    if (!is(reader, "aten::mul.Tensor") || !covers(reader)) continue;
    const Operand &first = operand_of(instruction(reader), 0), &second = operand_of(instruction(reader), 1);
    const auto both = [&](const Operand& a, const Operand& b) {
      return a.value == weights.value && is_row_major(a.geometry) && b.value == dropout.value &&
             is_row_major(b.geometry) == is_row_major(dropout.geometry);
    };
    if (both(first, second) || both(second, first)) return reader;
  }
  return -1;
}

/// Matches the gradient of the values. If it is not found, it stays a matmul.
void AttentionFinder::value_gradient(const Operand& weights, FusedAttention& found) {
  ValueId used = weights.value;
  if (found.dropout.value != graph::no_value) {
    const int dropped = dropped_weights(weights, found.dropout);
    if (dropped < 0) return;
    used = result(dropped).value;
  }
  for (const int reader : uses_.readers[used]) {
    if (!is(reader, "aten::bmm") || !covers(reader) || operand_of(instruction(reader), 0).value != used) continue;
    if (!is_transposed(operand_of(instruction(reader), 0).geometry) ||
        operand_of(instruction(reader), 1) != found.gradient)
      continue;
    found.value_gradient = result(reader);
    found.replaced.push_back(reader);
    return;
  }
}

/// Matches the gradients of the logits behind a softmax's backward operator: masks, scaling and matmuls.
bool AttentionFinder::below_softmax(int at, FusedAttention& found) {
  ValueId value = result(at).value;
  for (;;) {
    if (!uses_.is_free(value)) return false;
    const auto& readers = uses_.readers[value];
    if (readers.size() != 1 || calls(instruction(readers[0]), "aten::bmm")) break;
    const int next = readers[0];
    size_t chained = 0;
    if (!is_simple(instruction(next)) || !covers(next)) return false;
    if (const auto factor = factor_of(instruction(next))) {
      found.scale *= *factor;
    } else {
      auto mask = found.scale == 1 ? mask_of(next, chained) : std::nullopt;
      if (!mask || mask->adds) return false;
      found.masks.push_back(std::move(*mask));
    }
    const Operand& read = operand_of(instruction(next), chained);
    if (read.value != value || !is_row_major(read.geometry)) return false;
    found.replaced.push_back(next);
    value = result(next).value;
  }
  return gradients(value, found);
}

bool AttentionFinder::gradients(ValueId logits, FusedAttention& found) {
  for (const int reader : uses_.readers[logits]) {
    if (!is(reader, "aten::bmm") || !covers(reader)) return false;
    const Operand &left = operand_of(instruction(reader), 0), &right = operand_of(instruction(reader), 1);
    const bool of_query = left.value == logits;
    if (left.value == right.value || !is_row_major((of_query ? left : right).geometry)) return false;
    Operand& made = of_query ? found.query_gradient : found.key_gradient;
    if (made.value != graph::no_value) return false;
    made = result(reader);
    Operand& other = of_query ? found.key : found.query;
    other = of_query ? right : left;
    other.geometry = transposed(other.geometry);
    found.replaced.push_back(reader);
  }
  return found.query_gradient.value != graph::no_value || found.key_gradient.value != graph::no_value;
}

std::optional<FusedAttention> AttentionFinder::backward(int at) {
  if (!is(at, "aten::_softmax_backward_data") || !covers(at)) return {};
  const Instruction& one = instruction(at);
  const Operand& weights = operand_of(one, 1);
  const auto dims = static_cast<int64_t>(weights.geometry.sizes.size());
  const int64_t dim = one.arguments[2].constant.toInt();
  if (dims < 3 || dims > 4 || (dim != -1 && dim != dims - 1) || !is_float(weights) || !is_row_major(weights.geometry))
    return {};
  FusedAttention found{.backward = true, .replaced = {at}};
  int product = maker(operand_of(one, 0), at);
  if (is(product, "aten::mul.Tensor")) {
    const int drops = product;
    found.replaced.push_back(drops);
    const Operand &first = operand_of(instruction(drops), 0), &second = operand_of(instruction(drops), 1);
    const bool product_first = is(uses_.maker[first.value], "aten::bmm");
    product = maker(product_first ? first : second, drops);
    found.dropout = product_first ? second : first;
    if (first.geometry.sizes != second.geometry.sizes) return {};
  }
  if (!is(product, "aten::bmm")) return {};
  found.replaced.push_back(product);
  found.gradient = operand_of(instruction(product), 0);
  found.value = operand_of(instruction(product), 1);
  found.value.geometry = transposed(found.value.geometry);
  found.weights = weights;
  found.sizes(result(product).geometry.sizes);
  if (!below_softmax(at, found)) return {};
  value_gradient(weights, found);
  found.place = *std::min_element(found.replaced.begin(), found.replaced.end());
  return fits(found) ? std::make_optional(found) : std::nullopt;
}

/// True if the kernel supports the sizes, and all operands exist unchanged where the kernel runs.
bool AttentionFinder::fits(const FusedAttention& found) const {
  constexpr int64_t most_columns = 1024, most_width = 256;
  if (found.columns < 1 || found.columns > most_columns || found.rows < 1 || found.batch < 1) return false;
  for (const Operand* one : {&found.query, &found.key, &found.value, &found.gradient}) {
    if (one->value == graph::no_value) continue;
    const auto& sizes = one->geometry.sizes;
    const int64_t width = sizes.size() == 3 ? sizes[one == &found.key ? 1 : 2] : 0;
    if (!is_float(*one) || width < 1 || width > most_width || sizes[0] != found.batch) return false;
  }
  if (found.dropout.value != graph::no_value &&
      (!is_float(found.dropout) || found.dropout.geometry.strides.back() != 1))
    return false;
  for (const Operand& one : found.operands()) {
    if (uses_.maker[one.value] >= found.place) return false;
    if (uses_.overwriter[one.value] >= 0 && uses_.overwriter[one.value] < found.place) return false;
  }
  return true;
}

class AttentionPass {
 public:
  explicit AttentionPass(Program& program) : program_(program) {}

  /// Backward first: afterwards, only the forward pass reads the weights after dropout.
  int64_t run() {
    return fuse([](AttentionFinder& finder, int at) { return finder.backward(at); }) +
           fuse([](AttentionFinder& finder, int at) { return finder.forward(at); });
  }

 private:
  template <class Find>
  int64_t fuse(const Find& find) {
    int64_t fired = 0;
    auto finder = std::make_unique<AttentionFinder>(program_);
    for (int at = 0; at < static_cast<int>(program_.instructions.size()); ++at) {
      const auto found = find(*finder, at);
      if (!found) continue;
      at = replace(*found);
      finder = std::make_unique<AttentionFinder>(program_);
      ++fired;
    }
    return fired;
  }

  /// Returns the kernel's place in the changed program.
  int replace(const FusedAttention& found) {
    Instruction& place = program_.instructions[found.place];
    place = graph::detail::kernel_instruction(place, attention_kernel(found), "attention", found.operands(),
                                              found.results());
    std::vector<bool> erased(program_.instructions.size());
    int before = 0;
    for (const int each : found.replaced) {
      if (each == found.place || erased[each]) continue;
      erased[each] = true;
      before += each < found.place;
    }
    graph::detail::erase_instructions(program_, erased);
    return found.place - before;
  }

  Program& program_;
};

}  // namespace

graph::Pass attention_kernels_pass() {
  return {.name = attention_kernels_step,
          .what = "computes attention and its gradients in the cache, one head at a time",
          .tolerance = 1e-4,
          .run = [](Program& program, const graph::PassOptions&) {
            return AttentionPass(program).run() + replace_flash_attention(program) +
                   replace_quantized_attention(program);
          }};
}

}  // namespace bellows::compile_detail
