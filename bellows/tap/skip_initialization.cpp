#include "bellows/tap/skip_initialization.h"

#include <ATen/ops/fill_native.h>
#include <ATen/ops/zero_native.h>
#include <torch/library.h>

#include "bellows/tap/kernel_replacement.h"
#include "bellows/tap/random_operators.h"

namespace bellows::tap {

namespace {

constexpr size_t large_bytes = 64 << 10;

thread_local int skipping = 0, skipping_fills = 0;

bool skips_fill(const at::Tensor& tensor) {
  return skipping_fills > 0 && tensor.nbytes() >= large_bytes;
}

at::Tensor& fill_unless_skipped(at::Tensor& self, const at::Scalar& value) {
  return skips_fill(self) ? self : at::native::fill_(self, value);
}

at::Tensor& zero_unless_skipped(at::Tensor& self) {
  return skips_fill(self) ? self : at::native::zero_(self);
}

torch::Library* install_fill() {
  const SilentReplacement silent;
  auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("fill_.Scalar", fill_unless_skipped);
  library->impl("zero_", zero_unless_skipped);
  return library;
}

}  // namespace

SkipInitialization::SkipInitialization(bool fills) : fills_(fills) {
  [[gnu::used]] static const torch::Library* const installed = install_fill();  // never undone
  replace_kernels_of_random_operators();
  ++skipping;
  if (fills_) ++skipping_fills;
}

SkipInitialization::~SkipInitialization() {
  --skipping;
  if (fills_) --skipping_fills;
}

bool skips_initialization(const at::Tensor& tensor) {
  return skipping > 0 && tensor.nbytes() >= large_bytes;
}

}  // namespace bellows::tap
