#pragma once

#include <chrono>
#include <thread>

#include "tests/data/support.h"

namespace bellows::data::testing {

inline void nap_us(int64_t us) {
  std::this_thread::sleep_for(std::chrono::microseconds(us));
}

/// Numbers whose reads sleep, as those from a cold disk do.
inline SourcePtr sleeping_numbers(int64_t n, int64_t us) {
  return std::make_shared<CountingSource>(n, [us](int64_t) { nap_us(us); });
}

/// Takes all batches of an epoch; sleeps `model_us` for each.
inline void run_epoch(Loader& loader, int64_t epoch, int64_t model_us = 0) {
  for (const Batch& batch : loader.epoch(epoch)) {
    static_cast<void>(batch);
    if (model_us > 0) nap_us(model_us);
  }
}

}  // namespace bellows::data::testing
