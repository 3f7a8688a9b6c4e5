#include "bellows/kernels/adafactor.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "bellows/kernels/parallel.h"

// Compiled once for each instruction set that is not disabled below; the best one is chosen at run time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bellows/kernels/cpu/adafactor.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "bellows/kernels/cpu/adafactor_tile.h"
#include "bellows/kernels/cpu/optimizer_rules_impl.h"

HWY_BEFORE_NAMESPACE();
namespace bellows::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Calls `body(at, n)` for parts of the tile's rows, each within one row and no larger than a window.
template <class Body>
HWY_INLINE void for_pieces(const AdafactorTensor& t, const AdafactorTile& tile, Body body) {
  for (int64_t row = tile.first_row; row < tile.last_row; ++row) {
    for (size_t c = 0; c < static_cast<size_t>(t.columns); c += window_size)
      body(row, c, std::min<size_t>(window_size, static_cast<size_t>(t.columns) - c));
  }
}

template <class T>
double squares_of(const T* p, size_t n) {
  Sum<T> squares;
  for_lanes<T>(n, [&](auto d, size_t i) HWY_ATTR {
    const auto w = hn::LoadU(d, p + i);
    squares.add(d, hn::Mul(w, w));
  });
  return squares.get();
}

template <class T>
void tile_sums(const AdafactorTensor& t, AdafactorTile& tile) {
  WindowOf<T> g_window, p_window;
  const T factor = static_cast<T>(t.rule.grad_factor);
  for_pieces(t, tile, [&](int64_t row, size_t c, size_t n) HWY_ATTR {
    const size_t at = static_cast<size_t>(row * t.columns) + c;
    const T* const g = g_window.open(t.grad, t.grad_type, at, n);
    const bool new_batch = row % t.rows == 0 || row == tile.first_row;
    T* const columns = static_cast<T*>(tile.column_sums) + (row / t.rows - tile.first_row / t.rows) * t.columns + c;
    if (new_batch) std::fill(columns, columns + n, T(0));
    Sum<T> squares;
    for_lanes<T>(n, [&](auto d, size_t i) HWY_ATTR {
      const auto x = hn::Mul(hn::LoadU(d, g + i), hn::Set(d, factor));
      const auto square = hn::Mul(x, x);
      hn::StoreU(hn::Add(hn::LoadU(d, columns + i), square), d, columns + i);
      squares.add(d, square);
    });
    tile.row_sums[row] = (c == 0 ? 0 : tile.row_sums[row]) + squares.get();
    if (!t.rule.scale_parameter) return;
    const T* const p = p_window.open(t.param, t.param_type, at, n);
    tile.weight_squares += squares_of(p, n);
  });
}

/// Sums the squares of the update before clipping. Without factors, it also updates the second moment.
template <class T>
void tile_squares(const AdafactorTensor& t, AdafactorTile& tile) {
  WindowOf<T> g_window, p_window;
  const T factor = static_cast<T>(t.rule.grad_factor), beta2 = static_cast<T>(t.rule.beta2);
  const T fresh = static_cast<T>(1 - t.rule.beta2), eps1 = static_cast<T>(t.rule.eps1);
  for_pieces(t, tile, [&](int64_t row, size_t c, size_t n) HWY_ATTR {
    const size_t at = static_cast<size_t>(row * t.columns) + c;
    const T* const g = g_window.open(t.grad, t.grad_type, at, n);
    Sum<T> squares;
    if (!t.square) {
      const T* const columns = static_cast<const T*>(tile.column_factors) + row / t.rows * t.columns + c;
      for_lanes<T>(n, [&](auto d, size_t i) HWY_ATTR {
        const auto u = hn::Mul(hn::LoadU(d, g + i), hn::LoadU(d, columns + i));
        squares.add(d, hn::Mul(u, u));
      });
      const double scale = tile.row_factors[row] * t.rule.grad_factor;
      tile.update_squares += squares.get() * scale * scale;
      return;
    }
    T* const moment = static_cast<T*>(t.square) + at;
    for_lanes<T>(n, [&](auto d, size_t i) HWY_ATTR {
      const auto x = hn::Mul(hn::LoadU(d, g + i), hn::Set(d, factor));
      const auto square = hn::MulAdd(x, x, hn::Set(d, eps1));
      const auto v = hn::MulAdd(hn::Set(d, beta2), hn::LoadU(d, moment + i), hn::Mul(hn::Set(d, fresh), square));
      hn::StoreU(v, d, moment + i);
      squares.add(d, hn::Div(hn::Mul(x, x), v));
    });
    tile.update_squares += squares.get();
    if (!t.rule.scale_parameter) return;
    const T* const p = p_window.open(t.param, t.param_type, at, n);
    tile.weight_squares += squares_of(p, n);
  });
}

template <class T>
void tile_apply(const AdafactorTensor& t, AdafactorTile& tile) {
  WindowOf<T> g_window, p_window;
  const T keep = static_cast<T>(1 - t.rule.weight_decay * tile.lr);
  const T beta1 = static_cast<T>(t.rule.beta1), new1 = static_cast<T>(1 - t.rule.beta1);
  for_pieces(t, tile, [&](int64_t row, size_t c, size_t n) HWY_ATTR {
    const size_t at = static_cast<size_t>(row * t.columns) + c;
    const T* const g = g_window.open(t.grad, t.grad_type, at, n);
    T* const p = p_window.open(t.param, t.param_type, at, n);
    const T* const columns =
        t.square ? nullptr : static_cast<const T*>(tile.column_factors) + row / t.rows * t.columns + c;
    const T* const moment = t.square ? static_cast<const T*>(t.square) + at : nullptr;
    T* const first = t.first ? static_cast<T*>(t.first) + at : nullptr;
    const T scale = static_cast<T>(tile.factor * t.rule.grad_factor * (t.square ? 1 : tile.row_factors[row]));
    for_lanes<T>(n, [&](auto d, size_t i) HWY_ATTR {
      auto update = hn::Mul(hn::LoadU(d, g + i), hn::Set(d, scale));
      update =
          columns ? hn::Mul(update, hn::LoadU(d, columns + i)) : hn::Div(update, hn::Sqrt(hn::LoadU(d, moment + i)));
      if (first) {
        update = hn::MulAdd(hn::Set(d, beta1), hn::LoadU(d, first + i), hn::Mul(hn::Set(d, new1), update));
        hn::StoreU(update, d, first + i);
      }
      hn::StoreU(hn::MulSub(hn::LoadU(d, p + i), hn::Set(d, keep), update), d, p + i);
    });
    p_window.close(t.param, t.param_type, at, n);
  });
}

void adafactor_sums(const AdafactorTensor& t, AdafactorTile& tile) {
  t.param_type == Type::f64 ? tile_sums<double>(t, tile) : tile_sums<float>(t, tile);
}
void adafactor_squares(const AdafactorTensor& t, AdafactorTile& tile) {
  t.param_type == Type::f64 ? tile_squares<double>(t, tile) : tile_squares<float>(t, tile);
}
void adafactor_apply(const AdafactorTensor& t, AdafactorTile& tile) {
  t.param_type == Type::f64 ? tile_apply<double>(t, tile) : tile_apply<float>(t, tile);
}

}  // namespace bellows::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bellows::kernels {

namespace cpu {
HWY_EXPORT(adafactor_sums);
HWY_EXPORT(adafactor_squares);
HWY_EXPORT(adafactor_apply);
}  // namespace cpu

namespace {

using cpu::AdafactorTile;

constexpr int64_t tile_elements = 16384, tile_rows = 32;

/// One step of one tensor, in tiles of whole rows. Tiles are independent of each other, and sums follow the order of
/// the tiles.
template <class T>
class AdafactorStep {
 public:
  explicit AdafactorStep(const AdafactorTensor& t) : t_(t) {
    const int64_t rows = t.batches * t.rows;
    const int64_t height = std::max(tile_rows, tile_elements / t.columns);
    row_sums_.resize(t.square ? 0 : rows), row_factors_.resize(row_sums_.size());
    column_factors_.resize(t.square ? 0 : t.batches * t.columns);
    for (int64_t row = 0; row < rows; row += height) {
      const int64_t last = std::min(row + height, rows);
      const int64_t batches = t.square ? 0 : (last - 1) / t.rows - row / t.rows + 1;
      sums_.emplace_back(batches * t.columns);
      tiles_.push_back(
          {.first_row = row, .last_row = last, .row_sums = row_sums_.data(), .row_factors = row_factors_.data()});
    }
    for (size_t i = 0; i < tiles_.size(); ++i)
      tiles_[i].column_sums = sums_[i].data(), tiles_[i].column_factors = column_factors_.data();
  }

  void step() {
    if (!t_.square) {
      for_tiles(HWY_DYNAMIC_DISPATCH(cpu::adafactor_sums));
      update_factors();
    }
    for_tiles(HWY_DYNAMIC_DISPATCH(cpu::adafactor_squares));
    const AdafactorRule& r = t_.rule;
    const double lr = r.lr * (r.scale_parameter ? std::max(r.eps2, rms(&AdafactorTile::weight_squares)) : 1);
    const double factor = lr / std::max(1.0, rms(&AdafactorTile::update_squares) / r.clip_threshold);
    for (AdafactorTile& tile : tiles_) tile.lr = lr, tile.factor = factor;
    for_tiles(HWY_DYNAMIC_DISPATCH(cpu::adafactor_apply));
  }

 private:
  template <class Kernel>
  void for_tiles(Kernel kernel) {
    parallel_chunks(static_cast<int64_t>(tiles_.size()),
                    [&](int64_t i) { kernel(t_, tiles_[static_cast<size_t>(i)]); });
  }
  double rms(double AdafactorTile::*squares) const {
    double sum = 0;
    for (const AdafactorTile& tile : tiles_) sum += tile.*squares;
    return std::sqrt(sum / static_cast<double>(t_.batches * t_.rows * t_.columns));
  }
  double mixed(double old, double sum, int64_t count) const {
    return t_.rule.beta2 * old + (1 - t_.rule.beta2) * (sum / static_cast<double>(count) + t_.rule.eps1);
  }

  void update_factors() {
    std::vector<double> columns(column_factors_.size());
    for (size_t i = 0; i < tiles_.size(); ++i) {
      double* const to = columns.data() + tiles_[i].first_row / t_.rows * t_.columns;
      for (size_t c = 0; c < sums_[i].size(); ++c) to[c] += static_cast<double>(sums_[i][c]);
    }
    T* const column = static_cast<T*>(t_.column);
    for (size_t c = 0; c < columns.size(); ++c) {
      column[c] = static_cast<T>(mixed(column[c], columns[c], t_.rows));
      column_factors_[c] = 1 / std::sqrt(column[c]);
    }
    for (int64_t b = 0; b < t_.batches; ++b) {
      T* const row = static_cast<T*>(t_.row) + b * t_.rows;
      double mean = 0;
      for (int64_t i = 0; i < t_.rows; ++i) {
        row[i] = static_cast<T>(mixed(row[i], row_sums_[static_cast<size_t>(b * t_.rows + i)], t_.columns));
        mean += static_cast<double>(row[i]) / static_cast<double>(t_.rows);
      }
      for (int64_t i = 0; i < t_.rows; ++i)
        row_factors_[static_cast<size_t>(b * t_.rows + i)] = std::sqrt(mean / static_cast<double>(row[i]));
    }
  }

  const AdafactorTensor& t_;
  std::vector<double> row_sums_, row_factors_;
  std::vector<T> column_factors_;
  std::vector<std::vector<T>> sums_;  ///< column sums by tile
  std::vector<AdafactorTile> tiles_;
};

void step_tensor(const AdafactorTensor& t) {
  t.param_type == Type::f64 ? AdafactorStep<double>(t).step() : AdafactorStep<float>(t).step();
}

}  // namespace

void adafactor_step(std::span<const AdafactorTensor> tensors) {
  // Large tensors use all threads, one after another. Small tensors run side by side in one parallel region.
  std::vector<const AdafactorTensor*> small;
  for (const AdafactorTensor& t : tensors) {
    const int64_t size = t.batches * t.rows * t.columns;
    if (size > 8 * tile_elements) {
      step_tensor(t);
    } else if (size > 0) {
      small.push_back(&t);
    }
  }
  parallel_chunks(static_cast<int64_t>(small.size()), [&](int64_t i) { step_tensor(*small[static_cast<size_t>(i)]); });
}

}  // namespace bellows::kernels
#endif
