#include "bellows/data/images/mix_batch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "bellows/data/images/random_draw.h"

namespace bellows::data {

namespace {

/// Marsaglia and Tsang's method, for alpha of at least 1.
double draw_gamma_above_one(double alpha, RandomStream& random) {
  const double d = alpha - 1.0 / 3.0, c = 1.0 / std::sqrt(9.0 * d);
  for (;;) {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - random.uniform()));
    const double normal = radius * std::cos(2.0 * std::numbers::pi * random.uniform());
    const double v = std::pow(1.0 + c * normal, 3);
    if (v <= 0) continue;
    if (std::log(1.0 - random.uniform()) < 0.5 * normal * normal + d - d * v + d * std::log(v)) return d * v;
  }
}

/// The logarithm of a gamma draw for any alpha; the draw itself may be below the smallest double.
double draw_log_gamma(double alpha, RandomStream& random) {
  if (alpha >= 1) return std::log(draw_gamma_above_one(alpha, random));
  const double shift = std::log(1.0 - random.uniform()) / alpha;
  return std::log(draw_gamma_above_one(alpha + 1, random)) + shift;
}

io::ImageRegion draw_box(int64_t height, int64_t width, double share, RandomStream& random) {
  const int64_t x = draw_below(random, width), y = draw_below(random, height);
  const double r = 0.5 * std::sqrt(1.0 - share);
  const auto half_width = static_cast<int64_t>(r * static_cast<double>(width));
  const auto half_height = static_cast<int64_t>(r * static_cast<double>(height));
  const int64_t left = std::max<int64_t>(0, x - half_width), top = std::max<int64_t>(0, y - half_height);
  return {top, left, std::min(height, y + half_height) - top, std::min(width, x + half_width) - left};
}

void check_mix(const Batch& batch, const MixOptions& options) {
  TORCH_CHECK_VALUE(options.mixup_alpha >= 0 && options.cutmix_alpha >= 0 && std::isfinite(options.mixup_alpha) &&
                        std::isfinite(options.cutmix_alpha),
                    "mix_batch: expected alphas of at least 0, got ", options.mixup_alpha, " and ",
                    options.cutmix_alpha, ".");
  TORCH_CHECK_VALUE(options.num_classes >= 0, "mix_batch: expected num_classes of at least 0, got ",
                    options.num_classes, ".");
  const at::Tensor &image = batch["image"], &label = batch["label"];
  TORCH_CHECK_VALUE(image.dim() == 4 && label.dim() == 1 && label.scalar_type() == at::kLong,
                    "mix_batch: expected \"image\" [N, C, H, W] and \"label\" int64 [N], got ", image.sizes(), " and ",
                    label.sizes(), ".");
  TORCH_CHECK_VALUE(options.mixup_alpha == 0 || image.is_floating_point(),
                    "mix_batch: mixup needs floating-point images, got ", c10::toString(image.scalar_type()),
                    ". Set dtype(at::kFloat), or use cutmix.");
}

/// `labels` with row i's label from row i - 1.
at::Tensor rolled(const at::Tensor& labels) {
  at::Tensor result = at::empty_like(labels);
  const int64_t n = labels.size(0);
  if (n == 0) return result;
  result.narrow(0, 0, 1).copy_(labels.narrow(0, n - 1, 1));
  if (n > 1) result.narrow(0, 1, n - 1).copy_(labels.narrow(0, 0, n - 1));
  return result;
}

}  // namespace

double draw_beta(double alpha, RandomStream& random) {
  const double a = draw_log_gamma(alpha, random), b = draw_log_gamma(alpha, random);
  return 1.0 / (1.0 + std::exp(b - a));
}

void mixup_(const at::Tensor& images, double share) {
  const int64_t n = images.size(0);
  if (n == 0) return;
  const at::Tensor last = images.select(0, n - 1).clone();
  at::Tensor other = at::empty_like(last);
  for (int64_t i = n - 1; i >= 0; --i) {  // downwards, so that the previous image is still unchanged
    other.copy_(i > 0 ? images.select(0, i - 1) : last).mul_(1.0 - share);
    images.select(0, i).mul_(share).add_(other);
  }
}

void cutmix_(const at::Tensor& images, const io::ImageRegion& part) {
  const int64_t n = images.size(0);
  if (n == 0 || part.height <= 0 || part.width <= 0) return;
  const at::Tensor inside = images.narrow(2, part.y, part.height).narrow(3, part.x, part.width);
  const at::Tensor last = inside.select(0, n - 1).clone();
  for (int64_t i = n - 1; i > 0; --i) inside.select(0, i).copy_(inside.select(0, i - 1));
  inside.select(0, 0).copy_(last);
}

at::Tensor mix_labels(const at::Tensor& labels, double share, int64_t num_classes) {
  const int64_t n = labels.size(0);
  const at::Tensor dense = labels.contiguous(), shares = at::zeros({n, num_classes}, at::kFloat);
  const auto* label = dense.const_data_ptr<int64_t>();
  auto* out = shares.data_ptr<float>();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t own = label[i], other = label[i > 0 ? i - 1 : n - 1];
    TORCH_CHECK_VALUE(own >= 0 && own < num_classes, "mix_batch: expected a label in [0, ", num_classes, "), found ",
                      own, " in row ", i, ". Check the number of classes, or the data.");
    if (other >= 0 && other < num_classes) out[i * num_classes + other] = static_cast<float>(1.0 - share);
    out[i * num_classes + own] += static_cast<float>(share);
  }
  return shares;
}

Batch mix_batch(Batch batch, const MixOptions& options, uint64_t seed) {
  if (options.mixup_alpha == 0 && options.cutmix_alpha == 0) return batch;
  check_mix(batch, options);
  RandomStream random(seed);
  const at::Tensor& images = batch["image"];
  const bool coin = random.below(2) == 0;
  double share = 0;
  if (options.cutmix_alpha == 0 || (options.mixup_alpha > 0 && coin)) {
    share = draw_beta(options.mixup_alpha, random);
    mixup_(images, share);
  } else {
    const int64_t height = images.size(2), width = images.size(3);
    const io::ImageRegion box = draw_box(height, width, draw_beta(options.cutmix_alpha, random), random);
    share = 1.0 - static_cast<double>(box.height * box.width) / static_cast<double>(height * width);
    cutmix_(images, box);
  }
  NamedTensors tensors;
  for (const auto& [name, tensor] : batch.tensors()) {
    const bool soft = name == "label" && options.num_classes > 0;
    tensors.emplace_back(name, soft ? mix_labels(tensor, share, options.num_classes) : tensor);
  }
  if (options.num_classes == 0) {
    tensors.emplace_back("label_other", rolled(batch["label"]));
    tensors.emplace_back("label_share", at::full({batch.size()}, share, at::kFloat));
  }
  return {std::move(tensors), batch.ids(), batch.place()};
}

}  // namespace bellows::data
