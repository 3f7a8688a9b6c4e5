#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

namespace bellows::nn {

/// Runs `test` once for each instruction set that this machine has and the kernels were compiled for.
template <class Test>
void for_each_target(Test test) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    test();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace bellows::nn
