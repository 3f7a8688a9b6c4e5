#include "bellows/kernels/attention.h"

#include <algorithm>
#include <cmath>

namespace bellows::kernels::ref {
namespace {

using Values = std::vector<double>;  // a matrix, row by row

template <class T>
double at(const Matrices<const T>& matrices, int64_t i, int64_t row, int64_t column) {
  return static_cast<double>(matrices.at(i)[row * matrices.row + column * matrices.column]);
}

bool is_replaced(const AttentionMask& mask, int64_t i, int64_t row, int64_t column) {
  return (at(mask.replaced, i, row, column) != 0) != mask.inverted;
}

void softmax(double* x, int64_t count) {
  const double largest = *std::max_element(x, x + count);
  double sum = 0;
  for (int64_t c = 0; c < count; ++c) sum += x[c] = std::exp(x[c] - largest);
  for (int64_t c = 0; c < count; ++c) x[c] /= sum;
}

}  // namespace

void attention_forward(const AttentionForward& args) {
  const Attention& of = args.of;
  for (int64_t i = 0; i < of.batch; ++i) {
    for (int64_t row = 0; row < of.rows; ++row) {
      Values x(of.columns);
      for (int64_t c = 0; c < of.columns; ++c) {
        for (int64_t k = 0; k < of.width; ++k) x[c] += at(of.query, i, row, k) * at(of.key, i, k, c);
        x[c] *= of.scale;
        for (const AttentionMask& mask : args.masks) {
          if (mask.added.data)
            x[c] += at(mask.added, i, row, c);
          else if (is_replaced(mask, i, row, c))
            x[c] = mask.value;
        }
      }
      const bool empty = std::all_of(x.begin(), x.end(), [](double logit) { return logit == -HUGE_VAL; });
      if (empty && args.empty_rows_are_zero)
        std::fill(x.begin(), x.end(), 0);
      else
        softmax(x.data(), of.columns);
      for (int64_t c = 0; c < of.columns; ++c) {
        if (args.weights) args.weights[(i * of.rows + row) * of.columns + c] = static_cast<float>(x[c]);
        if (of.dropout.data) x[c] *= at(of.dropout, i, row, c);
        if (args.dropped) args.dropped[(i * of.rows + row) * of.columns + c] = static_cast<float>(x[c]);
      }
      for (int64_t k = 0; k < of.value_width; ++k) {
        double sum = 0;
        for (int64_t c = 0; c < of.columns; ++c) sum += x[c] * at(of.value, i, c, k);
        float* const result = args.placed.data ? args.placed.at(i) + row * args.placed.row
                                               : args.result + (i * of.rows + row) * of.value_width;
        result[k] = static_cast<float>(sum);
      }
    }
  }
}

void attention_backward(const AttentionBackward& args) {
  const Attention& of = args.of;
  for (int64_t i = 0; i < of.batch; ++i) {
    Values query(of.rows * of.width), key(of.width * of.columns), value(of.columns * of.value_width);
    for (int64_t row = 0; row < of.rows; ++row) {
      Values x(of.columns);
      const float* const weights = args.weights + (i * of.rows + row) * of.columns;
      double mean = 0;
      for (int64_t c = 0; c < of.columns; ++c) {
        const double factor = of.dropout.data ? at(of.dropout, i, row, c) : 1;
        for (int64_t k = 0; k < of.value_width; ++k) {
          x[c] += at(args.gradient, i, row, k) * at(of.value, i, c, k) * factor;
          value[c * of.value_width + k] += at(args.gradient, i, row, k) * weights[c] * factor;
        }
        mean += x[c] * weights[c];
      }
      for (int64_t c = 0; c < of.columns; ++c) {
        x[c] = (x[c] - mean) * weights[c];
        for (const AttentionMask& mask : args.masks) x[c] = is_replaced(mask, i, row, c) ? mask.value : x[c];
        x[c] *= of.scale;
        for (int64_t k = 0; k < of.width; ++k) {
          query[row * of.width + k] += x[c] * at(of.key, i, k, c);
          key[k * of.columns + c] += x[c] * at(of.query, i, row, k);
        }
      }
    }
    const auto store = [&](const Values& from, float* to) {
      if (to) std::copy(from.begin(), from.end(), to + i * static_cast<int64_t>(from.size()));
    };
    store(query, args.query_gradient);
    store(key, args.key_gradient);
    store(value, args.value_gradient);
  }
}

}  // namespace bellows::kernels::ref
