#include "bellows/kernels/layerwise.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "bellows/kernels/ref/element.h"

namespace bellows::kernels::ref {

namespace {

template <class T>
void lamb_reference(const LayerwiseTensor<LambRule>& t) {
  const LambRule& r = t.rule;
  double weights = 0, updates = 0;
  std::vector<double> update(static_cast<size_t>(t.size));
  for (int64_t i = 0; i < t.size; ++i) {
    const double p = load<T>(t.param, t.param_type, i);
    double g = load<T>(t.grad, t.grad_type, i) * r.grad_factor;
    if (!r.decoupled) g += r.weight_decay * p;
    T& m = static_cast<T*>(t.first)[i];
    T& v = static_cast<T*>(t.second)[i];
    m = static_cast<T>(r.beta1 * m + r.new1 * g);
    v = static_cast<T>(r.beta2 * v + (1 - r.beta2) * g * g);
    double& u = update[static_cast<size_t>(i)];
    u = m / r.correction1 / (std::sqrt(v / r.correction2) + r.eps);
    if (r.decoupled) u += r.weight_decay * p;
    weights += p * p;
    updates += u * u;
  }
  const bool adapts = r.adapts && weights != 0 && updates != 0;
  const double lr = adapts ? r.lr * (std::sqrt(weights) / std::sqrt(updates)) : r.lr;
  for (int64_t i = 0; i < t.size; ++i) {
    const double p = load<T>(t.param, t.param_type, i);
    store(t.param, t.param_type, i, static_cast<T>(p - lr * update[static_cast<size_t>(i)]));
  }
}

template <class T>
void novograd_reference(const LayerwiseTensor<NovogradRule>& t) {
  const NovogradRule& r = t.rule;
  const auto grad = [&](int64_t i) { return load<T>(t.grad, t.grad_type, i) * r.grad_factor; };
  double sum = 0;
  for (int64_t i = 0; i < t.size; ++i) {
    const double g = grad(i);
    sum = !r.max_norm ? sum + g * g : std::isnan(g) ? g : std::max(sum, std::abs(g));
  }
  const double now = r.max_norm ? sum : std::sqrt(sum);
  T& norm = *static_cast<T*>(t.second);
  const double old = r.first ? now : static_cast<double>(norm);
  norm = static_cast<T>(r.max_norm ? r.beta2 * old + (1 - r.beta2) * now
                                   : std::sqrt(r.beta2 * old * old + (1 - r.beta2) * now * now));
  const double divisor = norm / r.correction2 + r.eps;
  for (int64_t i = 0; i < t.size; ++i) {
    const double p = load<T>(t.param, t.param_type, i);
    T& m = static_cast<T*>(t.first)[i];
    const double fresh = r.inside_moment ? grad(i) / divisor + r.weight_decay * p : grad(i);
    m = static_cast<T>(r.beta1 * m + r.new1 * fresh);
    const double mean = m / r.correction1;
    const double update = r.inside_moment ? mean : mean / divisor + r.weight_decay * p;
    store(t.param, t.param_type, i, static_cast<T>(p - r.lr * update));
  }
}

}  // namespace

void layerwise_step(std::span<const LayerwiseTensor<LambRule>> tensors) {
  for (const auto& t : tensors) t.param_type == Type::f64 ? lamb_reference<double>(t) : lamb_reference<float>(t);
}

void layerwise_step(std::span<const LayerwiseTensor<NovogradRule>> tensors) {
  for (const auto& t : tensors)
    t.param_type == Type::f64 ? novograd_reference<double>(t) : novograd_reference<float>(t);
}

}  // namespace bellows::kernels::ref
