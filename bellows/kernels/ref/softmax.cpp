// Statistics and gradient of cross-entropy, written as the formulas, in double.
#include "bellows/kernels/softmax.h"
#include "bellows/kernels/ref/values.h"
#include "bellows/kernels/softmax_formula.h"

namespace bellows::kernels::ref {

void softmax_statistics(const SoftmaxStatistics& args) {
  const SoftmaxRows& scores = args.scores;
  const c10::ScalarType acc = accumulation_type(scores.dtype);
  for (int64_t row = 0; row < scores.rows; ++row) {
    SoftmaxSum<double> state{value_at(args.max, acc, row), value_at(args.sum, acc, row)};
    double total = 0;
    for (int64_t i = 0; i < scores.columns; ++i) {
      const double x = value_at(scores.logits, scores.dtype, row * scores.stride + i);
      state.add(&x, 1);
      total += x;
      if (scores.target[row] == scores.first + i) set_value_at(args.picked, acc, row, x);
    }
    set_value_at(args.max, acc, row, state.max);
    set_value_at(args.sum, acc, row, state.sum);
    if (args.total) set_value_at(args.total, acc, row, value_at(args.total, acc, row) + total);
  }
}

void softmax_gradient(const SoftmaxGradient& args) {
  const SoftmaxRows& scores = args.scores;
  const c10::ScalarType acc = accumulation_type(scores.dtype);
  for (int64_t row = 0; row < scores.rows; ++row) {
    const double log_sum = value_at(args.log_sum, acc, row), scale = value_at(args.scale, acc, row);
    for (int64_t i = 0; i < scores.columns; ++i) {
      const double x = value_at(scores.logits, scores.dtype, row * scores.stride + i);
      const double on = scores.target[row] == scores.first + i ? args.on : 0;
      set_value_at(args.gradient, scores.dtype, row * scores.stride + i,
                   softmax_gradient_of(x, log_sum, on, args.off, scale));
    }
  }
}

}  // namespace bellows::kernels::ref
