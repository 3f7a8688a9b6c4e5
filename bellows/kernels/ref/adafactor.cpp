#include "bellows/kernels/adafactor.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "bellows/kernels/ref/element.h"

namespace bellows::kernels::ref {

namespace {

template <class T>
class AdafactorReference {
 public:
  explicit AdafactorReference(const AdafactorTensor& t) : t_(t), n_(t.batches * t.rows * t.columns), update_(n_) {}

  void step() {
    double squares = 0, weights = 0;
    for (int64_t i = 0; i < n_; ++i) weights += weight(i) * weight(i);
    t_.square ? whole() : factored();
    for (const double u : update_) squares += u * u;
    const AdafactorRule& r = t_.rule;
    const auto rms = [&](double sum) { return std::sqrt(sum / static_cast<double>(n_)); };
    const double lr = r.lr * (r.scale_parameter ? std::max(r.eps2, rms(weights)) : 1);
    const double factor = lr / std::max(1.0, rms(squares) / r.clip_threshold);
    for (int64_t i = 0; i < n_; ++i) {
      double update = update_[static_cast<size_t>(i)] * factor;
      if (t_.first) {
        T& first = static_cast<T*>(t_.first)[i];
        update = first = static_cast<T>(r.beta1 * first + (1 - r.beta1) * update);
      }
      store(t_.param, t_.param_type, i, static_cast<T>(weight(i) * (1 - r.weight_decay * lr) - update));
    }
  }

 private:
  double weight(int64_t i) const { return load<T>(t_.param, t_.param_type, i); }
  double grad(int64_t i) const { return load<T>(t_.grad, t_.grad_type, i) * t_.rule.grad_factor; }
  double mixed(double old, double fresh) const {
    return t_.rule.beta2 * old + (1 - t_.rule.beta2) * (fresh + t_.rule.eps1);
  }

  void whole() {
    for (int64_t i = 0; i < n_; ++i) {
      T& square = static_cast<T*>(t_.square)[i];
      square = static_cast<T>(mixed(square, grad(i) * grad(i)));
      update_[static_cast<size_t>(i)] = grad(i) / std::sqrt(static_cast<double>(square));
    }
  }
  void factored() {
    for (int64_t b = 0; b < t_.batches; ++b) {
      T* const row = static_cast<T*>(t_.row) + b * t_.rows;
      T* const column = static_cast<T*>(t_.column) + b * t_.columns;
      const int64_t at = b * t_.rows * t_.columns;
      std::vector<double> by_row(t_.rows), by_column(t_.columns);
      for (int64_t i = 0; i < t_.rows * t_.columns; ++i) {
        const double square = grad(at + i) * grad(at + i);
        by_row[static_cast<size_t>(i / t_.columns)] += square / static_cast<double>(t_.columns);
        by_column[static_cast<size_t>(i % t_.columns)] += square / static_cast<double>(t_.rows);
      }
      double mean = 0;
      for (int64_t i = 0; i < t_.rows; ++i) {
        row[i] = static_cast<T>(mixed(row[i], by_row[static_cast<size_t>(i)]));
        mean += row[i] / static_cast<double>(t_.rows);
      }
      for (int64_t i = 0; i < t_.columns; ++i)
        column[i] = static_cast<T>(mixed(column[i], by_column[static_cast<size_t>(i)]));
      for (int64_t i = 0; i < t_.rows * t_.columns; ++i) {
        const double factors = row[i / t_.columns] / mean * column[i % t_.columns];
        update_[static_cast<size_t>(at + i)] = grad(at + i) / std::sqrt(factors);
      }
    }
  }

  const AdafactorTensor& t_;
  int64_t n_;
  std::vector<double> update_;
};

}  // namespace

void adafactor_step(std::span<const AdafactorTensor> tensors) {
  for (const AdafactorTensor& t : tensors) {
    if (t.batches * t.rows * t.columns == 0) continue;
    t.param_type == Type::f64 ? AdafactorReference<double>(t).step() : AdafactorReference<float>(t).step();
  }
}

}  // namespace bellows::kernels::ref
