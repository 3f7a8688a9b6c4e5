#pragma once

#include <cmath>

#include "bellows/kernels/host_device.h"
#include "bellows/kernels/optimizer_step.h"

// Scalar formulas of the update rules, shared by kernels/ref and kernels/cuda.
namespace bellows::kernels {

/// A rule with its constants. The constants are computed in double and stored in T, the type of the arithmetic.
template <class T, class Rule>
struct Formula;

template <class T>
struct Formula<T, SgdRule> {
  T factor, decay, momentum, undamped, lr;
  bool has_buffer, nesterov, first;
  BELLOWS_HOST_DEVICE explicit Formula(const SgdRule& r)
      : factor(r.grad_factor),
        decay(r.weight_decay),
        momentum(r.momentum),
        undamped(1 - r.dampening),
        lr(r.lr),
        has_buffer(r.momentum != 0),
        nesterov(r.nesterov),
        first(r.first) {}
  BELLOWS_HOST_DEVICE void operator()(T& p, T g, T* s) const {
    g *= factor;
    if (decay != 0) g += decay * p;  // 0 · infinity would make an infinite weight NaN
    if (has_buffer) {
      s[0] = first ? g : momentum * s[0] + undamped * g;
      g = nesterov ? g + momentum * s[0] : s[0];
    }
    p -= lr * g;
  }
};

template <class T>
struct Formula<T, AdamRule> {
  T factor, coupled_decay, keep, beta1, new1, beta2, new2, eps, step_size, root_scale;
  bool amsgrad;
  BELLOWS_HOST_DEVICE explicit Formula(const AdamRule& r)
      : factor(r.grad_factor),
        coupled_decay(r.decoupled ? 0 : r.weight_decay),
        keep(r.decoupled ? 1 - r.lr * r.weight_decay : 1),
        beta1(r.beta1),
        new1(1 - r.beta1),
        beta2(r.beta2),
        new2(1 - r.beta2),
        eps(r.eps),
        step_size(r.lr / (1 - std::pow(r.beta1, r.step))),
        root_scale(1 / std::sqrt(1 - std::pow(r.beta2, r.step))),
        amsgrad(r.amsgrad) {}
  BELLOWS_HOST_DEVICE void operator()(T& p, T g, T* s) const {
    g *= factor;
    if (coupled_decay != 0) g += coupled_decay * p;
    p *= keep;
    s[0] = beta1 * s[0] + new1 * g;
    s[1] = beta2 * s[1] + new2 * g * g;
    T v = s[1];
    if (amsgrad) v = s[2] = s[2] > v ? s[2] : v;
    p -= step_size * s[0] / (std::sqrt(v) * root_scale + eps);
  }
};

template <class T>
struct Formula<T, RmspropRule> {
  T factor, decay, alpha, fresh, eps, momentum, lr;
  bool has_buffer, centered;
  BELLOWS_HOST_DEVICE explicit Formula(const RmspropRule& r)
      : factor(r.grad_factor),
        decay(r.weight_decay),
        alpha(r.alpha),
        fresh(1 - r.alpha),
        eps(r.eps),
        momentum(r.momentum),
        lr(r.lr),
        has_buffer(r.momentum != 0),
        centered(r.centered) {}
  BELLOWS_HOST_DEVICE void operator()(T& p, T g, T* s) const {
    g *= factor;
    if (decay != 0) g += decay * p;
    s[0] = alpha * s[0] + fresh * g * g;
    T v = s[0];
    if (centered) {
      T& mean = s[has_buffer ? 2 : 1];
      mean = alpha * mean + fresh * g;
      v -= mean * mean;
    }
    T direction = g / (std::sqrt(v) + eps);
    if (has_buffer) direction = s[1] = momentum * s[1] + direction;
    p -= lr * direction;
  }
};

template <class T>
struct Formula<T, AdagradRule> {
  T factor, decay, eps, lr;
  BELLOWS_HOST_DEVICE explicit Formula(const AdagradRule& r)
      : factor(r.grad_factor), decay(r.weight_decay), eps(r.eps), lr(r.lr / (1 + (r.step - 1) * r.lr_decay)) {}
  BELLOWS_HOST_DEVICE void operator()(T& p, T g, T* s) const {
    g *= factor;
    if (decay != 0) g += decay * p;
    s[0] += g * g;
    p -= lr * g / (std::sqrt(s[0]) + eps);
  }
};

template <class T>
struct Formula<T, LionRule> {
  T factor, keep, beta1, new1, beta2, new2, lr;
  BELLOWS_HOST_DEVICE explicit Formula(const LionRule& r)
      : factor(r.grad_factor),
        keep(1 - r.lr * r.weight_decay),
        beta1(r.beta1),
        new1(1 - r.beta1),
        beta2(r.beta2),
        new2(1 - r.beta2),
        lr(r.lr) {}
  BELLOWS_HOST_DEVICE void operator()(T& p, T g, T* s) const {
    g *= factor;
    const T direction = beta1 * s[0] + new1 * g;
    p = p * keep - lr * (T(direction > 0) - T(direction < 0));
    s[0] = beta2 * s[0] + new2 * g;
  }
};

}  // namespace bellows::kernels
