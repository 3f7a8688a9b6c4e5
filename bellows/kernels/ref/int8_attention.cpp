#include "bellows/kernels/int8_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace bellows::kernels::ref {
namespace {

int64_t integer_of(float x, float scale) {
  const float rounded = std::nearbyint(x * (1 / scale));
  return std::isnan(rounded) ? -128 : static_cast<int64_t>(std::clamp(rounded, -128.0F, 127.0F));
}

/// One row of softmax as integers up to 255.
std::vector<int64_t> integer_powers(const Int8Attention& args, int64_t i, int64_t row) {
  std::vector<double> logits(args.columns);
  const float factor = args.query_scale * args.key_scale * args.scale;
  for (int64_t column = 0; column < args.columns; ++column) {
    int64_t sum = 0;
    for (int64_t k = 0; k < args.width; ++k) {
      sum += integer_of(args.query.at(i)[row * args.query.row + k], args.query_scale) *
             integer_of(args.key.at(i)[column * args.key.row + k], args.key_scale);
    }
    logits[column] = static_cast<double>(sum) * static_cast<double>(factor);
  }
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<int64_t> powers;
  powers.reserve(logits.size());
  for (const double logit : logits) powers.push_back(std::lround(255 * std::exp(logit - largest)));
  return powers;
}

}  // namespace

void int8_attention(const Int8Attention& args) {
  for (int64_t i = 0; i < args.batch; ++i) {
    for (int64_t row = 0; row < args.rows; ++row) {
      const std::vector<int64_t> powers = integer_powers(args, i, row);
      int64_t total = 0;
      for (const int64_t power : powers) total += power;
      for (int64_t k = 0; k < args.value_width; ++k) {
        int64_t sum = 0;
        for (int64_t column = 0; column < args.columns; ++column)
          sum += powers[column] * integer_of(args.value.at(i)[column * args.value.row + k], args.value_scale);
        args.result.at(i)[row * args.result.row + k] = static_cast<float>(
            static_cast<double>(sum) * static_cast<double>(args.value_scale) / static_cast<double>(total));
      }
    }
  }
}

}  // namespace bellows::kernels::ref
