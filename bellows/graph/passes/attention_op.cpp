#include <ATen/core/Tensor.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <torch/library.h>

#include <cmath>
#include <numeric>

#include "bellows/graph/passes/passes.h"
#include "bellows/graph/program/program_edit.h"

namespace bellows::graph::detail {
namespace {

using Scores = at::TensorAccessor<float, 4>;

/// Whether softmax finds a score in the row that is neither NaN nor -inf.
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

/// Attention in fp32, of softmax as libtorch's operator of that name computes it: of a row without any score it is NaN, where the fused
/// one gives 0, and 0 or -inf as the logarithm of the row's sum.
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

const OperatorFacts& attention_operator() {
  static const OperatorFacts* const facts = operator_named("bellows::attention");
  return *facts;
}

}  // namespace bellows::graph::detail
