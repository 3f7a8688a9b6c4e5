#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/data/source.h"
#include "bellows/train/job.h"
#include "bench/support/bench.h"

namespace bellows::bench {

/// A job with one known bottleneck, and the change that removes it.
struct ProfileCase {
  std::string name;
  std::string finding;  ///< the finding that `bellows profile` must report
  train::Recipe recipe{};
  std::function<train::Job(const train::Recipe&)> slow;
  /// The job with other code. Empty if the settings of the finding are the change.
  std::function<train::Job(const train::Recipe&)> changed{};
  /// The setting to measure if the profile does not report the finding, because it does not apply on this machine.
  std::string setting{};
};

/// Reads of this source wait, like those of a slow disk.
data::SourcePtr slow_source(data::SourcePtr source, double milliseconds);

/// A job of a small network on random features, with the loader settings of the recipe.
/// Params: features, hidden, layers – sizes of the network, which has three classes
train::Job feature_job(const train::Recipe& recipe, int64_t features, int64_t hidden, int64_t layers);

/// Returns the cases with one process, in the order of docs/profile.md.
/// Params: folder – on a disk, for the case that reads memory from a file
std::vector<ProfileCase> profile_cases(const Options& options, const std::string& folder);

}  // namespace bellows::bench
