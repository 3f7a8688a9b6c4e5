#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

#include "bellows/system/machine.h"

/// What the ladder's JSON is made of.
namespace bellows::train::ladder_json {

using LadderJson = nlohmann::ordered_json;

inline LadderJson number_or_null(double value) {
  return std::isfinite(value) ? LadderJson(value) : LadderJson(nullptr);
}

template <class Interval>  // RatioInterval or Range
inline LadderJson interval_json(const Interval& interval) {
  return {number_or_null(interval.low), number_or_null(interval.high)};
}

inline LadderJson machine_json(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"cores", machine.cores},
          {"threads", machine.hardware_threads},
          {"torch_threads", machine.torch_threads},
          {"isa", machine.isa},
          {"memory_bytes", machine.memory_bytes},
          {"os", machine.os},
          {"libtorch", machine.libtorch}};
}

}  // namespace bellows::train::ladder_json
