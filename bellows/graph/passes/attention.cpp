#include <ATen/core/Tensor.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bellows/graph/passes/passes.h"
#include "bellows/graph/program/program_edit.h"

namespace bellows::graph::detail {
namespace {

using Scores = at::TensorAccessor<float, 4>;

/// True if the row has a logit that is neither NaN nor -inf.
bool has_score(const Scores& query, const Scores& key, const std::optional<Scores>& mask, int64_t batch, int64_t head,
               int64_t row, double scale) {
  const auto q = query[batch][head][row];
  for (int64_t column = 0; column < key.size(2); ++column) {
    const auto k = key[batch][head][column];
    const float product = std::inner_product(q.data(), q.data() + q.size(0), k.data(), 0.0F);
    const float score = product * static_cast<float>(scale) + (mask ? (*mask)[batch][head][row][column] : 0.0F);
    if (score > -INFINITY) return true;
  }
  return false;
}

/// Attention in fp32 with libtorch's softmax semantics. Rows without any logit are NaN. The fused operator returns 0
/// for them, and 0 or -inf as the logarithm of the row's sum.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double scale) {
  auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, false, mask, scale);
  const Scores q = query.accessor<float, 4>(), k = key.accessor<float, 4>();
  const at::Tensor spread = mask ? mask->expand({q.size(0), q.size(1), q.size(2), k.size(2)}) : at::Tensor();
  const auto m = mask ? std::make_optional(spread.accessor<float, 4>()) : std::nullopt;
  const auto sum = sums.accessor<float, 3>();
  auto result = out.accessor<float, 4>();
  for (int64_t batch = 0; batch < q.size(0); ++batch) {
    for (int64_t head = 0; head < q.size(1); ++head) {
      for (int64_t row = 0; row < q.size(2); ++row) {
        const float found = sum[batch][head][row];
        if ((found != 0 && found != -INFINITY) || has_score(q, k, m, batch, head, row, scale)) continue;
        for (int64_t i = 0; i < result.size(3); ++i) result[batch][head][row][i] = NAN;
      }
    }
  }
  return out;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(bellows, library) {
  library.def("attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale) -> Tensor",
              {at::Tag::pt2_compliant_tag});
}

TORCH_LIBRARY_IMPL(bellows, CPU, library) {
  library.impl("attention", attention);
}

namespace {

/// The operator "bellows::attention", by which the pass replaces matrix multiplications and softmax.
const OperatorFacts& attention_operator() {
  static const OperatorFacts* const facts = operator_named("bellows::attention");
  return *facts;
}

/// The operators of one attention; -1: not present.
struct Attention {
  int scores = -1, scaled = -1, masked = -1, softmax = -1;
  double scale = 1;
  Geometry::Numbers weights{};              ///< [batch, heads, rows, columns]
  Operand mask{}, query{}, key{}, value{};  ///< as 4-dimensional tensors, too
};

/// True for a product of 4-dimensional tensors or a batch of matrices: as bmm in training, or as matmul in inference
/// mode.
bool is_product(const Instruction& one) {
  const auto dims = [&](int argument) { return one.arguments[argument].operands[0].geometry.sizes.size(); };
  return calls(one, "aten::bmm") || (calls(one, "aten::matmul") && dims(0) == 4 && dims(1) == 4);
}

class AttentionFuser {
 public:
  explicit AttentionFuser(Program& program) : program_(program) {}

  int64_t run() {
    int64_t fired = 0;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      if (!is_product(program_.instructions[i]) || !is_pure(program_.instructions[i])) continue;
      const Uses uses(program_);
      Attention found;
      fired += match(uses, static_cast<int>(i), found) && replace(static_cast<int>(i), found);
    }
    return fired;
  }

 private:
  const Operand& operand(int at, int argument) const {
    return program_.instructions[at].arguments[argument].operands[0];
  }
  const Operand& result(int at) const { return program_.instructions[at].results[0].operands[0]; }

  /// Returns: the instruction that made the operand, if only `reader` reads it, and both see it row-major
  int maker(const Uses& uses, const Operand& read, int reader) const {
    const int made = uses.maker[read.value];
    if (made < 0 || !uses.read_only_by(read.value, reader) || program_.instructions[made].results.size() != 1)
      return -1;
    return is_row_major(read.geometry) && is_row_major(result(made).geometry) &&
                   read.geometry.dtype == result(made).geometry.dtype
               ? made
               : -1;
  }

  bool match(const Uses& uses, int product, Attention& found) const {
    found.softmax = maker(uses, operand(product, 0), product);
    if (found.softmax < 0 || !calls(program_.instructions[found.softmax], "aten::_softmax")) return false;
    const Geometry& weights = operand(found.softmax, 0).geometry;
    const auto dims = static_cast<int64_t>(weights.sizes.size());
    const int64_t dim = program_.instructions[found.softmax].arguments[1].constant.toInt();
    if (dims < 3 || dims > 4 || (dim != dims - 1 && dim != -1) || weights.dtype.toScalarType() != c10::kFloat)
      return false;
    found.weights = weights.sizes;
    if (dims == 3) found.weights.insert(found.weights.begin() + 1, 1);
    int at = maker(uses, operand(found.softmax, 0), found.softmax);
    if (at >= 0 && calls(program_.instructions[at], "aten::add.Tensor")) at = take_mask(uses, at, found);
    if (at >= 0) at = take_scale(uses, at, found);
    if (at < 0 || !is_product(program_.instructions[at])) return false;
    found.scores = at;
    return fits(uses, product, found);
  }

  int take_mask(const Uses& uses, int at, Attention& found) const {
    const auto& alpha = program_.instructions[at].arguments[2];
    if (alpha.number >= 0 || !alpha.constant.isInt() || alpha.constant.toInt() != 1) return -1;
    found.masked = at;
    found.mask = operand(at, 1);
    Geometry& mask = found.mask.geometry;
    if (mask.dtype.toScalarType() != c10::kFloat || mask.sizes.size() < 2) return -1;
    const bool of_each = mask.sizes.size() == 3 && operand(at, 0).geometry.sizes.size() == 3;
    if (of_each) insert_dim(mask, 1);
    while (mask.sizes.size() < 4) insert_dim(mask, 0);
    return maker(uses, operand(at, 0), at);
  }

  static void insert_dim(Geometry& geometry, int before) {
    geometry.sizes.insert(geometry.sizes.begin() + before, 1);
    geometry.strides.insert(geometry.strides.begin() + before, 0);
  }

  int take_scale(const Uses& uses, int at, Attention& found) const {
    const Instruction& one = program_.instructions[at];
    const bool divides = calls(one, "aten::div.Scalar");
    if (!divides && !calls(one, "aten::mul.Scalar")) return at;
    const auto& number = one.arguments[1];
    if (number.number >= 0 || !(number.constant.isDouble() || number.constant.isInt())) return -1;
    const double factor =
        number.constant.isInt() ? static_cast<double>(number.constant.toInt()) : number.constant.toDouble();
    found.scaled = at;
    found.scale = divides ? 1 / factor : factor;
    return maker(uses, operand(at, 0), at);
  }

  /// True if the inputs still exist at this instruction, in rows that the operator can read.
  bool fits(const Uses& uses, int product, Attention& found) const {
    const auto there = [&](const Operand& one) {
      return one.value == no_value || uses.overwriter[one.value] < 0 || uses.overwriter[one.value] > product;
    };
    if (!is_row_major(result(product).geometry)) return false;
    for (const auto& [to, from] :
         {std::pair(&found.query, &operand(found.scores, 0)), std::pair(&found.key, &operand(found.scores, 1)),
          std::pair(&found.value, &operand(product, 1))}) {
      const auto& sizes = from->geometry.sizes;
      const int64_t batch = found.weights[0], heads = found.weights[1];
      const bool alike = sizes.size() == 4 ? sizes[0] == batch && sizes[1] == heads : sizes[0] == batch * heads;
      if (!alike) return false;
      *to = split(uses, *from, heads);
    }
    std::swap(found.key.geometry.sizes[2], found.key.geometry.sizes[3]);
    std::swap(found.key.geometry.strides[2], found.key.geometry.strides[3]);
    const int64_t width = found.query.geometry.sizes[3];
    for (const Operand* one : {&found.query, &found.key, &found.value}) {
      const Geometry& seen = one->geometry;
      const int64_t rows = found.weights[one == &found.query ? 2 : 3];
      if (seen.strides[3] != 1 || seen.sizes[3] != width || seen.sizes[2] != rows || !there(*one)) return false;
    }
    return there(found.mask);
  }

  /// Views [batch * heads, rows, columns] as [batch, heads, rows, columns], unless it already is. If it is a copy made
  /// only for this operator, the original is read instead.
  Operand split(const Uses& uses, Operand one, int64_t heads) const {
    Geometry& seen = one.geometry;
    if (seen.sizes.size() == 4) return one;
    const Geometry::Numbers sizes{seen.sizes[0] / heads, heads, seen.sizes[1], seen.sizes[2]};
    const int copy = uses.maker[one.value];
    if (copy >= 0 && calls(program_.instructions[copy], "aten::clone") && is_row_major(seen) &&
        is_row_major(result(copy).geometry) && result(copy).geometry.sizes == sizes)
      return operand(copy, 0);
    seen.sizes = sizes;
    seen.strides = {seen.strides[0] * heads, seen.strides[0], seen.strides[1], seen.strides[2]};
    return one;
  }

  bool replace(int product, const Attention& found) {
    const int64_t heads = found.weights[1];
    const auto tensor = [](const Operand& one) {
      return Instruction::Argument{.kind = OperatorFacts::Kind::tensor, .operands = {one}};
    };
    const Geometry::Numbers& sizes = found.query.geometry.sizes;
    const Instruction& replaced = program_.instructions[product];
    Instruction one{.op = &attention_operator(), .state = replaced.state, .default_dtype = replaced.default_dtype};
    one.arguments = {tensor(found.query), tensor(found.key), tensor(found.value),
                     found.mask.value == no_value ? Instruction::Argument{} : tensor(found.mask),
                     Instruction::Argument{.kind = one.op->arguments[4], .constant = found.scale}};
    Operand out = result(product);
    out.geometry.sizes = {sizes[0], heads, sizes[2], sizes[3]};
    const int64_t row = sizes[3], head = sizes[2] * row;
    out.geometry.strides = {heads * head, head, row, 1};
    one.results = {{.operands = {out}}};
    program_.values[out.value].geometry = out.geometry;
    program_.instructions[product] = std::move(one);
    return true;
  }

  Program& program_;
};

}  // namespace

int64_t fuse_attention(Program& program, const PassOptions&) {
  return AttentionFuser(program).run();
}

}  // namespace bellows::graph::detail
