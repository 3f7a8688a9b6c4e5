#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

/// Operator cases that are run with and without a tap. One case is one way of calling an operator, with its backward.
namespace bellows::tap::testing {

/// The same values each time it is made.
struct BitsInputs {
  BitsInputs();
  at::Tensor a, b;    ///< [13, 37], normal
  at::Tensor pos;     ///< [13, 37], in (0.1, 1.1)
  at::Tensor unit;    ///< [13, 37], in (-0.9, 0.9)
  at::Tensor zeros;   ///< [13, 37], normal with some exact zeros
  at::Tensor w;       ///< [37, 19]
  at::Tensor v, u;    ///< [37]
  at::Tensor batch;   ///< [4, 5, 6]
  at::Tensor batch2;  ///< [4, 6, 7]
  at::Tensor square;  ///< [8, 8], well conditioned
  at::Tensor spd;     ///< [8, 8], symmetric positive definite
  at::Tensor image;   ///< [2, 4, 10, 10]
  at::Tensor signal;  ///< [2, 4, 24]
  at::Tensor kernel;  ///< [6, 4, 3, 3]
  at::Tensor bias;    ///< [6]
  at::Tensor one;     ///< scalar
  // without gradient
  at::Tensor index;    ///< [11], int64 in [0, 13)
  at::Tensor columns;  ///< [13, 5], int64 in [0, 37)
  at::Tensor mask;     ///< [13, 37], bool
  at::Tensor labels;   ///< [13], int64 in [0, 37)
  std::vector<at::Tensor> leaves() const;
};

struct BitsCase {
  std::string name;
  std::function<std::vector<at::Tensor>(const BitsInputs&)> run;

  /// Results, after a backward pass from all of them that leaves the gradients in the inputs' leaves.
  std::vector<at::Tensor> run_with_backward(const BitsInputs& inputs) const;
};

extern const std::vector<BitsCase> pointwise_cases;
extern const std::vector<BitsCase> reduction_cases;
extern const std::vector<BitsCase> indexing_cases;
extern const std::vector<BitsCase> matrix_cases;
extern const std::vector<BitsCase> network_cases;

inline std::vector<at::Tensor> parts(at::Tensor t) {
  return {std::move(t)};
}
inline std::vector<at::Tensor> parts(std::vector<at::Tensor> t) {
  return t;
}
template <class... T>
std::vector<at::Tensor> parts(const std::tuple<T...>& t) {
  return std::apply([](const auto&... one) { return std::vector<at::Tensor>{one...}; }, t);
}

/// BITS_CASE("prod", i.a.prod()): a case whose inputs are called `i`.
#define BITS_CASE(name, ...)        \
  BitsCase {                        \
    name, [](const BitsInputs& i) { \
      (void)i;                      \
      return parts(__VA_ARGS__);    \
    }                               \
  }

}  // namespace bellows::tap::testing
