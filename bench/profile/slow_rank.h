#pragma once

#include <string>
#include <vector>

#include "bellows/advice/findings.h"
#include "bench/support/bench.h"

namespace bellows::bench {

/// Serves as a rank of the case "one slow rank". Returns the exit code.
int serve_slow_rank();

/// The case on two processes of one thread each: reads of rank 1 wait. Rank 0 measures for this program.
struct SlowRank {
  train::Finding finding{};  ///< its name is empty if the profile did not report "straggler"
  Comparison comparison{};   ///< seconds per step, with the suggested settings and without them
};
SlowRank measure_slow_rank(const Plan& plan);

}  // namespace bellows::bench
