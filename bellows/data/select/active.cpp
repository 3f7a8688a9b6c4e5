#include "bellows/data/select/active.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/special_entr.h>
#include <ATen/ops/topk.h>
#include <c10/util/Exception.h>

#include <limits>

#include "bellows/core/grad_mode.h"

namespace bellows::data {

namespace {

void check_probabilities(const char* what, const at::Tensor& probabilities, int64_t dims) {
  TORCH_CHECK_VALUE(probabilities.dim() == dims && probabilities.is_floating_point() && probabilities.size(-1) > 1,
                    what, ": expected probabilities [", dims == 3 ? "T, " : "", "N, C] with C of at least 2, got ",
                    probabilities.scalar_type(), " ", probabilities.sizes(), ".");
}

void check_rows(const std::vector<int64_t>& rows, int64_t n) {
  for (const int64_t row : rows)
    TORCH_CHECK_VALUE(row >= 0 && row < n, "k_center: expected labeled rows in [0, ", n, "), got ", row, ".");
}

}  // namespace

at::Tensor least_confidence(const at::Tensor& probabilities) {
  check_probabilities("least_confidence", probabilities, 2);
  return 1 - probabilities.amax({1});
}

at::Tensor small_margin(const at::Tensor& probabilities) {
  check_probabilities("small_margin", probabilities, 2);
  const at::Tensor top = std::get<0>(at::topk(probabilities, 2, 1));
  return 1 - (top.select(1, 0) - top.select(1, 1));
}

at::Tensor entropy(const at::Tensor& probabilities) {
  check_probabilities("entropy", probabilities, 2);
  return at::special_entr(probabilities).sum(1);
}

at::Tensor bald(const at::Tensor& probabilities) {
  check_probabilities("bald", probabilities, 3);
  TORCH_CHECK_VALUE(probabilities.size(0) > 1, "bald: expected at least 2 passes, got ", probabilities.size(0), ".");
  return at::special_entr(probabilities.mean(0)).sum(1) - at::special_entr(probabilities).sum(2).mean(0);
}

std::vector<int64_t> k_center(const at::Tensor& features, const std::vector<int64_t>& labelled, int64_t count) {
  TORCH_CHECK_VALUE(features.dim() == 2, "k_center: expected features [N, D], got ", features.sizes(), ".");
  const int64_t n = features.size(0);
  check_rows(labelled, n);
  const c10::NoGradGuard no_grad;
  const at::Tensor rows = features.detach().to(at::kFloat);
  const at::Tensor center = labelled.empty() && n > 0 ? rows.mean(0) : at::Tensor();
  at::Tensor distance = at::full({n}, std::numeric_limits<float>::infinity(), rows.options());
  const auto see = [&](const at::Tensor& point) { distance = at::minimum(distance, (rows - point).square().sum(1)); };
  for (const int64_t row : labelled) {
    see(rows.select(0, row));
    distance.select(0, row).fill_(-1);
  }
  TORCH_CHECK_VALUE(count >= 0 && count <= distance.ge(0).sum().item<int64_t>(), "k_center: ", count,
                    " rows were requested, but of ", n, " rows, ", labelled.size(), " are already labeled.");
  std::vector<int64_t> chosen;
  while (static_cast<int64_t>(chosen.size()) < count) {
    const bool first = chosen.empty() && center.defined();
    const int64_t row = at::argmax(first ? (rows - center).square().sum(1) : distance).item<int64_t>();
    chosen.push_back(row);
    see(rows.select(0, row));
    distance.select(0, row).fill_(-1);
  }
  return chosen;
}

}  // namespace bellows::data
