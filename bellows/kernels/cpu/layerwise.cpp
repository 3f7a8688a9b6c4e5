#include "bellows/kernels/layerwise.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "bellows/kernels/parallel.h"

// Compiled once for each instruction set that is not disabled below; the best one is chosen at run time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/layerwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "bellows/kernels/cpu/layerwise_chunk.h"
#include "bellows/kernels/cpu/optimizer_rules_impl.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// The factors of a rule as T.
template <class T, class Rule>
struct LayerwiseNumbers {
  T grad_factor, beta1, new1, beta2, new2, eps, decay, inverse1, root_inverse2;
  explicit LayerwiseNumbers(const Rule& r)
      : grad_factor(static_cast<T>(r.grad_factor)),
        beta1(static_cast<T>(r.beta1)),
        new1(static_cast<T>(r.new1)),
        beta2(static_cast<T>(r.beta2)),
        new2(static_cast<T>(1 - r.beta2)),
        eps(static_cast<T>(r.eps)),
        decay(static_cast<T>(r.weight_decay)),
        inverse1(static_cast<T>(1 / r.correction1)),
        root_inverse2(static_cast<T>(1 / std::sqrt(r.correction2))) {}
};

template <class Body>
HWY_INLINE void for_windows(const LayerwiseChunk& chunk, Body body) {
  for (size_t at = chunk.begin; at < chunk.end; at += window_size) body(at, std::min(window_size, chunk.end - at));
}

template <class T, class D>
HWY_INLINE hn::Vec<D> lamb_update(D d, const LayerwiseNumbers<T, LambRule>& c, bool adds_decay, hn::Vec<D> m,
                                  hn::Vec<D> v, hn::Vec<D> p) {
  const auto root = hn::MulAdd(hn::Sqrt(v), hn::Set(d, c.root_inverse2), hn::Set(d, c.eps));
  const auto update = hn::Div(hn::Mul(m, hn::Set(d, c.inverse1)), root);
  return adds_decay ? hn::MulAdd(hn::Set(d, c.decay), p, update) : update;
}

/// Updates the moments and adds up the squares of parameter and update.
template <class T>
void lamb_moments_as(const LayerwiseTensor<LambRule>& t, LayerwiseChunk& chunk) {
  WindowOf<T> g_window, p_window;
  const LayerwiseNumbers<T, LambRule> c(t.rule);
  const bool decays = t.rule.weight_decay != 0, decoupled = t.rule.decoupled;
  for_windows(chunk, [&](size_t at, size_t n) HWY_ATTR {
    const T* const g = g_window.open(t.grad, t.grad_type, at, n);
    const T* const p = p_window.open(t.param, t.param_type, at, n);
    T* const first = static_cast<T*>(t.first) + at;
    T* const second = static_cast<T*>(t.second) + at;
    Sum<T> weights, updates;
    for_lanes<T>(n, [&](auto d, size_t i) HWY_ATTR {
      const auto w = hn::LoadU(d, p + i);
      const auto x =
          decayed(hn::LoadU(d, g + i), hn::Set(d, c.grad_factor), decays && !decoupled, hn::Set(d, c.decay), w);
      const auto m = hn::MulAdd(hn::Set(d, c.beta1), hn::LoadU(d, first + i), hn::Mul(hn::Set(d, c.new1), x));
      const auto v =
          hn::MulAdd(hn::Set(d, c.beta2), hn::LoadU(d, second + i), hn::Mul(hn::Mul(hn::Set(d, c.new2), x), x));
      hn::StoreU(m, d, first + i);
      hn::StoreU(v, d, second + i);
      const auto update = lamb_update<T>(d, c, decays && decoupled, m, v, w);
      weights.add(d, hn::Mul(w, w));
      updates.add(d, hn::Mul(update, update));
    });
    chunk.sums[0] += weights.get();
    chunk.sums[1] += updates.get();
  });
}

template <class T>
void lamb_apply_as(const LayerwiseTensor<LambRule>& t, LayerwiseChunk& chunk) {
  WindowOf<T> p_window;
  const LayerwiseNumbers<T, LambRule> c(t.rule);
  const bool adds_decay = t.rule.weight_decay != 0 && t.rule.decoupled;
  const T step_size = static_cast<T>(chunk.factor);
  for_windows(chunk, [&](size_t at, size_t n) HWY_ATTR {
    T* const p = p_window.open(t.param, t.param_type, at, n);
    const T* const first = static_cast<const T*>(t.first) + at;
    const T* const second = static_cast<const T*>(t.second) + at;
    for_lanes<T>(n, [&](auto d, size_t i) HWY_ATTR {
      const auto w = hn::LoadU(d, p + i);
      const auto update = lamb_update<T>(d, c, adds_decay, hn::LoadU(d, first + i), hn::LoadU(d, second + i), w);
      hn::StoreU(hn::NegMulAdd(hn::Set(d, step_size), update, w), d, p + i);
    });
    p_window.close(t.param, t.param_type, at, n);
  });
}

template <class T>
void novograd_norm_as(const LayerwiseTensor<NovogradRule>& t, LayerwiseChunk& chunk) {
  WindowOf<T> g_window;
  const T factor = static_cast<T>(t.rule.grad_factor);
  for_windows(chunk, [&](size_t at, size_t n) HWY_ATTR {
    const T* const g = g_window.open(t.grad, t.grad_type, at, n);
    if (t.rule.max_norm) {
      for (size_t i = 0; i < n; ++i) {
        const double x = std::abs(static_cast<double>(g[i] * factor));
        if (!(x <= chunk.sums[0]) && !std::isnan(chunk.sums[0])) chunk.sums[0] = x;  // also takes a NaN
      }
      return;
    }
    Sum<T> squares;
    for_lanes<T>(n, [&](auto d, size_t i) HWY_ATTR {
      const auto x = hn::Mul(hn::LoadU(d, g + i), hn::Set(d, factor));
      squares.add(d, hn::Mul(x, x));
    });
    chunk.sums[0] += squares.get();
  });
}

template <class T>
void novograd_apply_as(const LayerwiseTensor<NovogradRule>& t, LayerwiseChunk& chunk) {
  WindowOf<T> g_window, p_window;
  const LayerwiseNumbers<T, NovogradRule> c(t.rule);
  const T inverse = static_cast<T>(1 / chunk.factor), lr = static_cast<T>(t.rule.lr);
  const bool inside = t.rule.inside_moment, decays = t.rule.weight_decay != 0;
  const T grad_factor = inside ? c.grad_factor * inverse : c.grad_factor;
  const T mean_factor = inside ? c.inverse1 : c.inverse1 * inverse;
  for_windows(chunk, [&](size_t at, size_t n) HWY_ATTR {
    const T* const g = g_window.open(t.grad, t.grad_type, at, n);
    T* const p = p_window.open(t.param, t.param_type, at, n);
    T* const first = static_cast<T*>(t.first) + at;
    for_lanes<T>(n, [&](auto d, size_t i) HWY_ATTR {
      const auto w = hn::LoadU(d, p + i);
      const auto decay = hn::Set(d, c.decay);
      const auto x = decayed(hn::LoadU(d, g + i), hn::Set(d, grad_factor), inside && decays, decay, w);
      const auto m = hn::MulAdd(hn::Set(d, c.beta1), hn::LoadU(d, first + i), hn::Mul(hn::Set(d, c.new1), x));
      hn::StoreU(m, d, first + i);
      const auto update = decayed(m, hn::Set(d, mean_factor), !inside && decays, decay, w);
      hn::StoreU(hn::NegMulAdd(hn::Set(d, lr), update, w), d, p + i);
    });
    p_window.close(t.param, t.param_type, at, n);
  });
}

void lamb_moments(const LayerwiseTensor<LambRule>& t, LayerwiseChunk& chunk) {
  t.param_type == Type::f64 ? lamb_moments_as<double>(t, chunk) : lamb_moments_as<float>(t, chunk);
}
void lamb_apply(const LayerwiseTensor<LambRule>& t, LayerwiseChunk& chunk) {
  t.param_type == Type::f64 ? lamb_apply_as<double>(t, chunk) : lamb_apply_as<float>(t, chunk);
}
void novograd_norm(const LayerwiseTensor<NovogradRule>& t, LayerwiseChunk& chunk) {
  t.param_type == Type::f64 ? novograd_norm_as<double>(t, chunk) : novograd_norm_as<float>(t, chunk);
}
void novograd_apply(const LayerwiseTensor<NovogradRule>& t, LayerwiseChunk& chunk) {
  t.param_type == Type::f64 ? novograd_apply_as<double>(t, chunk) : novograd_apply_as<float>(t, chunk);
}

}  // namespace bellows::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bellows::kernels {

namespace cpu {
HWY_EXPORT(lamb_moments);
HWY_EXPORT(lamb_apply);
HWY_EXPORT(novograd_norm);
HWY_EXPORT(novograd_apply);
}  // namespace cpu

namespace {

using cpu::LayerwiseChunk;

double step_size(const LayerwiseTensor<LambRule>& t, const double (&sums)[2]) {
  const bool adapts = t.rule.adapts && sums[0] != 0 && sums[1] != 0;
  return adapts ? t.rule.lr * (std::sqrt(sums[0]) / std::sqrt(sums[1])) : t.rule.lr;
}

template <class T>
double next_norm(const LayerwiseTensor<NovogradRule>& t, double sum) {
  const NovogradRule& r = t.rule;
  T& norm = *static_cast<T*>(t.second);
  const double now = r.max_norm ? sum : std::sqrt(sum), old = r.first ? now : static_cast<double>(norm);
  norm = static_cast<T>(r.max_norm ? r.beta2 * old + (1 - r.beta2) * now
                                   : std::sqrt(r.beta2 * old * old + (1 - r.beta2) * now * now));
  return static_cast<double>(norm);
}

/// Updates the average of the norms and returns the divisor of the gradient.
double divisor(const LayerwiseTensor<NovogradRule>& t, const double (&sums)[2]) {
  const double norm = t.param_type == Type::f64 ? next_norm<double>(t, sums[0]) : next_norm<float>(t, sums[0]);
  return norm / t.rule.correction2 + t.rule.eps;
}

/// Combines sums of two ranges.
double combined(const LayerwiseTensor<LambRule>&, double a, double b) {
  return a + b;
}
double combined(const LayerwiseTensor<NovogradRule>& t, double a, double b) {
  if (!t.rule.max_norm) return a + b;
  return b <= a || std::isnan(a) ? a : b;
}

/// Runs `sums` for each range of each tensor, then `apply` with the factor that `factor_of` computes from a tensor's
/// sums.
template <class Rule, class Sums, class FactorOf, class Apply>
void step_in_chunks(std::span<const LayerwiseTensor<Rule>> tensors, Sums sums, FactorOf factor_of, Apply apply) {
  constexpr size_t chunk_size = 16384;
  size_t count = 0;
  for (const auto& t : tensors) count += (static_cast<size_t>(t.size) + chunk_size - 1) / chunk_size;
  std::vector<LayerwiseChunk> chunks;
  chunks.reserve(count);
  for (size_t k = 0; k < tensors.size(); ++k) {
    const auto size = static_cast<size_t>(tensors[k].size);
    for (size_t at = 0; at < size; at += chunk_size)
      chunks.push_back({.tensor = k, .begin = at, .end = std::min(at + chunk_size, size)});
  }
  const auto for_chunks = [&](auto kernel) {
    const auto run = [&](int64_t i) {
      LayerwiseChunk& chunk = chunks[static_cast<size_t>(i)];
      kernel(tensors[chunk.tensor], chunk);
    };
    if (count > 1) return parallel_chunks(static_cast<int64_t>(count), run);
    if (count == 1) run(0);  // waking the other threads would take longer
  };
  for_chunks(sums);
  for (size_t first = 0, last = 0; first < chunks.size(); first = last) {
    double total[2] = {};
    for (; last < chunks.size() && chunks[last].tensor == chunks[first].tensor; ++last) {
      for (size_t k = 0; k < 2; ++k) total[k] = combined(tensors[chunks[last].tensor], total[k], chunks[last].sums[k]);
    }
    const double factor = factor_of(tensors[chunks[first].tensor], total);
    for (size_t i = first; i < last; ++i) chunks[i].factor = factor;
  }
  for_chunks(apply);
}

}  // namespace

void layerwise_step(std::span<const LayerwiseTensor<LambRule>> tensors) {
  step_in_chunks(tensors, HWY_DYNAMIC_DISPATCH(cpu::lamb_moments), step_size, HWY_DYNAMIC_DISPATCH(cpu::lamb_apply));
}

void layerwise_step(std::span<const LayerwiseTensor<NovogradRule>> tensors) {
  step_in_chunks(tensors, HWY_DYNAMIC_DISPATCH(cpu::novograd_norm), divisor, HWY_DYNAMIC_DISPATCH(cpu::novograd_apply));
}

}  // namespace bellows::kernels
#endif
