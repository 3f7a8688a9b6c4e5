#include "bellows/tap/context.h"

#include <ATen/ThreadLocalState.h>

namespace bellows::tap {

Context Context::capture() {
  Context result;
  result.state_ = std::make_shared<const at::ThreadLocalState>();
  return result;
}

ContextGuard::ContextGuard(const Context& context)
    : keep_(context.state_), guard_(std::make_unique<at::ThreadLocalStateGuard>(*keep_)) {}

ContextGuard::~ContextGuard() = default;

}  // namespace bellows::tap
