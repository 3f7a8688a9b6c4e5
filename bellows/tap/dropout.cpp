#include "bellows/tap/dropout.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/dropout_native.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

namespace bellows::tap {

namespace {

thread_local int byte_dropout_guards = 0;

/// Whether libtorch draws one value per element, and multiplies the input by it.
bool draws_mask(const at::Tensor& input, double p, bool train) {
  return train && p > 0 && p < 1 && input.layout() == at::kStrided && input.is_floating_point() && !input.has_names() &&
         input.numel() > 0;
}

/// Replaces the kernel that the dispatcher derives from the composite operator for autograd's key. The operators below
/// arrive at dispatch modes one by one, like those of libtorch's dropout.
at::Tensor byte_dropout(const at::Tensor& input, double p, bool train) {
  if (byte_dropout_guards == 0 || !draws_mask(input, p, train)) return at::native::dropout(input, p, train);
  const at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  at::Tensor noise = mask.to(input.scalar_type());
  noise.div_(1 - p);
  return input.mul(noise);
}

struct IgnoreDropoutWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

torch::Library* install_dropout() {
  IgnoreDropoutWarnings ignore;
  const c10::WarningUtils::WarningHandlerGuard silence(&ignore);
  auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__);
  library->impl("dropout", byte_dropout);
  return library;
}

}  // namespace

ByteDropoutGuard::ByteDropoutGuard(bool enabled) : enabled_(enabled) {
  if (!enabled_) return;
  [[gnu::used]] static const torch::Library* const installed = install_dropout();  // never undone
  ++byte_dropout_guards;
}

ByteDropoutGuard::~ByteDropoutGuard() {
  if (enabled_) --byte_dropout_guards;
}

}  // namespace bellows::tap
