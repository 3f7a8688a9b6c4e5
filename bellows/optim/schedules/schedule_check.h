#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "bellows/optim/schedules/schedule.h"

/// Argument checks of the schedules. Only this component uses them.
namespace bellows::optim::check {

/// Throws: c10::ValueError if `value` is not finite or outside [low, high]
inline void number(const char* where, const char* name, double value, double low = 0, double high = INFINITY) {
  TORCH_CHECK_VALUE(std::isfinite(value) && value >= low && value <= high, where, ": expected ", name, " of at least ",
                    low, std::isfinite(high) ? c10::str(" and at most ", high) : "", ", got ", value, ".");
}

inline void count(const char* where, const char* name, int64_t value, int64_t low = 1) {
  TORCH_CHECK_VALUE(value >= low, where, ": expected ", name, " of at least ", low, ", got ", value, ".");
}

inline void increasing(const char* where, const std::vector<int64_t>& milestones) {
  for (size_t i = 0; i < milestones.size(); ++i) {
    TORCH_CHECK_VALUE(milestones[i] > (i == 0 ? 0 : milestones[i - 1]), where,
                      ": expected milestones above 0 that increase, got ", c10::IntArrayRef(milestones), ".");
  }
}

inline void callable(const char* where, const Schedule& schedule) {
  TORCH_CHECK_VALUE(schedule, where, ": expected a schedule, got an empty function.");
}

}  // namespace bellows::optim::check
