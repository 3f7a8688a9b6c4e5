#pragma once

#include <c10/util/Exception.h>

namespace bellows::tap {

/// Silences the dispatcher's warning that a kernel is replaced, on this thread while the object exists. Hooks that replace
/// kernels of libtorch create such an object while they register their kernels.
class SilentReplacement {
 public:
  SilentReplacement() : guard_(&handler_) {}
  SilentReplacement(const SilentReplacement&) = delete;
  SilentReplacement& operator=(const SilentReplacement&) = delete;

 private:
  struct Ignoring final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  Ignoring handler_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace bellows::tap
