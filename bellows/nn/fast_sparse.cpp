#include "bellows/nn/fast_sparse.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "bellows/kernels/sparse_matmul.h"
#include "bellows/tap/sparse_operators.h"

namespace bellows::nn {

namespace {

thread_local int sparse_guards = 0;
std::atomic<int64_t> sparse_performed = 0;

/// The entries of a sparse matrix, ordered by rows.
struct Entries {
  at::Tensor columns, values;             ///< int64 [n] and [n], in memory order
  std::vector<int64_t> offsets, order{};  ///< as in kernels::SparseMatmul; `order` is empty if entries are in order
};

bool all_within(const at::Tensor& indices, int64_t size) {
  const auto* const data = indices.const_data_ptr<int64_t>();
  bool outside = false;  // without an early exit, so that the compiler vectorizes the loop
  for (int64_t k = 0; k < indices.numel(); ++k)
    outside |= static_cast<uint64_t>(data[k]) >= static_cast<uint64_t>(size);
  return !outside;
}

at::Tensor as_int64(const at::Tensor& indices) {
  return indices.to(at::kLong).contiguous();
}

/// Counts the entries of each row, and orders them by a counting sort if necessary. Entries of a row keep their order.
std::optional<Entries> by_rows(const at::Tensor& rows, const at::Tensor& columns, const at::Tensor& values,
                               int64_t row_count, int64_t column_count) {
  if (!all_within(rows, row_count) || !all_within(columns, column_count)) return {};
  const auto* const row = rows.const_data_ptr<int64_t>();
  const int64_t count = rows.numel();
  Entries made{columns, values, std::vector<int64_t>(row_count + 1, 0)};
  for (int64_t k = 0; k < count; ++k) ++made.offsets[row[k] + 1];
  for (int64_t i = 0; i < row_count; ++i) made.offsets[i + 1] += made.offsets[i];
  if (std::is_sorted(row, row + count)) return made;
  std::vector<int64_t> next(made.offsets.begin(), made.offsets.end() - 1);
  made.order.resize(count);
  for (int64_t k = 0; k < count; ++k) made.order[next[row[k]]++] = k;
  return made;
}

/// The offsets of a compressed layout, or nothing if they are not valid.
std::optional<std::vector<int64_t>> valid_offsets(const at::Tensor& given, int64_t count) {
  const at::Tensor offsets = as_int64(given);
  const auto* const data = offsets.const_data_ptr<int64_t>();
  std::vector<int64_t> made(data, data + offsets.numel());
  if (made.empty() || made.front() != 0 || made.back() != count || !std::is_sorted(made.begin(), made.end())) return {};
  return made;
}

/// The index of the compressed dim for each entry.
at::Tensor expanded(const std::vector<int64_t>& offsets, const at::Tensor& like) {
  at::Tensor made = at::empty_like(like);
  auto* const out = made.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i + 1 < offsets.size(); ++i)
    std::fill(out + offsets[i], out + offsets[i + 1], static_cast<int64_t>(i));
  return made;
}

std::optional<Entries> entries_of(const at::Tensor& sparse) {
  const int64_t rows = sparse.size(0), columns = sparse.size(1);
  if (sparse.layout() == at::kSparse) {
    if (sparse.sparse_dim() != 2 || sparse.dense_dim() != 0) return {};
    const at::Tensor indices = sparse._indices();
    return by_rows(as_int64(indices.select(0, 0)), as_int64(indices.select(0, 1)), sparse._values().contiguous(), rows,
                   columns);
  }
  const at::Tensor values = sparse.values().contiguous();
  if (values.dim() != 1) return {};
  const bool by_row = sparse.layout() == at::kSparseCsr;
  auto offsets = valid_offsets(by_row ? sparse.crow_indices() : sparse.ccol_indices(), values.numel());
  const at::Tensor inner = as_int64(by_row ? sparse.col_indices() : sparse.row_indices());
  if (!offsets) return {};
  if (!by_row) return by_rows(inner, expanded(*offsets, inner), values, rows, columns);
  if (!all_within(inner, columns)) return {};
  return Entries{inner, values, std::move(*offsets)};
}

bool is_supported(const at::Tensor& self, const at::Tensor& sparse, const at::Tensor& dense) {
  const auto type = sparse.scalar_type();
  const auto layout = sparse.layout();
  return sparse.is_cpu() && dense.is_cpu() && self.is_cpu() && dense.layout() == at::kStrided &&
         self.layout() == at::kStrided && sparse.dim() == 2 && dense.dim() == 2 && sparse.size(1) == dense.size(0) &&
         (layout == at::kSparse || layout == at::kSparseCsr || layout == at::kSparseCsc) &&
         (type == at::kFloat || type == at::kDouble || type == at::kBFloat16) && dense.scalar_type() == type &&
         self.scalar_type() == type && !dense.is_conj() && !dense.is_neg();
}

class FastSparse final : public tap::SparseOperators {
 public:
  std::optional<at::Tensor> addmm(const at::Tensor& self, const at::Tensor& sparse, const at::Tensor& dense,
                                  const at::Scalar& beta, const at::Scalar& alpha) override {
    if (sparse_guards == 0 || !is_supported(self, sparse, dense)) return {};
    const bool adds = beta.toDouble() != 0;
    at::Tensor out = at::empty({sparse.size(0), dense.size(1)}, dense.options());
    if (adds && !at::is_expandable_to(self.sizes(), out.sizes())) return {};
    const auto entries = entries_of(sparse);
    if (!entries) return {};
    const at::Tensor right = dense.stride(1) == 1 || dense.size(1) == 1 ? dense : dense.contiguous();
    kernels::sparse_matmul({.dtype = sparse.scalar_type(),
                            .rows = out.size(0),
                            .columns = out.size(1),
                            .offsets = entries->offsets.data(),
                            .indices = entries->columns.const_data_ptr<int64_t>(),
                            .values = entries->values.const_data_ptr(),
                            .order = entries->order.empty() ? nullptr : entries->order.data(),
                            .dense = right.const_data_ptr(),
                            .dense_stride = right.stride(0),
                            .out = out.mutable_data_ptr()});
    sparse_performed.fetch_add(1, std::memory_order_relaxed);
    if (alpha.toDouble() != 1) out.mul_(alpha);
    if (adds) out.add_(self, beta);
    return out;
  }
};

}  // namespace

FastSparseGuard::FastSparseGuard(bool enabled) : enabled_(enabled) {
  if (!enabled_) return;
  [[gnu::used]] static const bool installed = [] {
    static auto* const operators = new FastSparse;  // never destroyed: operators may run until the process ends
    tap::replace_sparse_operators(operators);
    return true;
  }();
  ++sparse_guards;
}

FastSparseGuard::~FastSparseGuard() {
  if (enabled_) --sparse_guards;
}

int64_t FastSparseGuard::performed() {
  return sparse_performed.load(std::memory_order_relaxed);
}

}  // namespace bellows::nn
