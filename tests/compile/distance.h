#pragma once

#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <thread>

#include "bellows/compile/backend.h"
#include "tests/graph/support.h"

namespace bellows::compile_detail::testing {

using graph::testing::Tensors;

/// Until all that a back end or a compiled function makes faster is ready.
template <class Maker>
void wait_for(const Maker& maker) {
  while (!maker.ready()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

/// Returns the same program, but each call waits until everything that is made faster is ready.
inline std::function<graph::testing::Program()> waiting(const std::shared_ptr<CpuBackend>& backend,
                                                        const std::function<graph::testing::Program()>& make) {
  return [=] {
    graph::testing::Program program = make();
    program.body = [backend, body = std::move(program.body)](int call) {
      wait_for(*backend);
      return body(call);
    };
    return program;
  };
}

/// How far a tensor is from what is expected, in units of 1e-5 of the largest value and of 1e-5; of other types or sizes, or with other
/// places that are NaN or infinite: very far.
inline double distance(const at::Tensor& expected, const at::Tensor& got) {
  if (expected.defined() != got.defined()) return HUGE_VAL;
  if (!expected.defined() || expected.numel() == 0) return 0;
  if (expected.sizes() != got.sizes() || expected.strides() != got.strides() || expected.dtype() != got.dtype())
    return HUGE_VAL;
  if (!expected.is_floating_point()) return at::equal(expected, got) ? 0 : HUGE_VAL;
  const at::Tensor a = expected.detach().to(at::kDouble), b = got.detach().to(at::kDouble), finite = a.isfinite();
  if (!at::equal(finite, b.isfinite())) return HUGE_VAL;
  if (!at::equal(a.masked_fill(finite, 0).nan_to_num(7), b.masked_fill(finite, 0).nan_to_num(7))) return HUGE_VAL;
  const at::Tensor x = a.masked_fill(~finite, 0), y = b.masked_fill(~finite, 0);
  return (x - y).abs().max().item<double>() / (1e-5 * (1 + x.abs().max().item<double>()));
}

inline double furthest(const Tensors& expected, const Tensors& got) {
  double result = expected.size() == got.size() ? 0 : HUGE_VAL;
  for (size_t i = 0; i < std::min(expected.size(), got.size()); ++i)
    result = std::max(result, distance(expected[i], got[i]));
  return result;
}

}  // namespace bellows::compile_detail::testing
