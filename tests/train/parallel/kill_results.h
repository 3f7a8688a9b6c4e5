#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/checkpoint/folder.h"
#include "bellows/io/hash.h"
#include "tests/train/parallel/rank_processes.h"

/// Results of runs whose ranks are killed.
namespace bellows::train {

/// The seed of the random moments. Set BELLOWS_KILL_SEED to have the same moments again.
inline uint64_t printed_kill_seed() {
  const char* given = std::getenv("BELLOWS_KILL_SEED");
  const uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::printf("BELLOWS_KILL_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

/// Of the names, dtypes, sizes and bytes of all weights, in the order of their names. Checkpoints of one rank and of several
/// ranks have other orders.
inline std::string sha256_of_weights(const std::string& folder) {
  std::string bytes;
  const NamedTensors weights = trained(folder);
  for (const auto& [name, tensor] : std::map<std::string, at::Tensor>(weights.begin(), weights.end())) {
    const at::Tensor dense = tensor.contiguous();
    bytes += c10::str(name, " ", dense.scalar_type(), " ", dense.sizes(), "\n");
    bytes.append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  }
  return io::hash_hex("sha256", {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
}

/// The step of the newest complete checkpoint in a folder; 0: none.
inline int64_t newest_step(const std::string& folder) {
  if (!std::filesystem::exists(folder)) return 0;
  const std::vector<std::string> all = checkpoint::list_checkpoints(folder);
  constexpr std::string_view prefix = "step-";
  return all.empty() ? 0 : std::stoll(std::filesystem::path(all.back()).filename().string().substr(prefix.size()));
}

/// How often the launcher has restarted all ranks.
inline size_t restarts_in(const std::string& log) {
  size_t count = 0;
  for (size_t at = 0; (at = log.find("Restarting all", at)) != std::string::npos; ++at) ++count;
  return count;
}

/// The step at which the last resume started, by the log of the run; 0: at the beginning; -1: the log does not say.
inline int64_t last_start_step(std::string_view log) {
  constexpr std::string_view resumed = "resume: continuing from step ";
  const size_t at = log.rfind(resumed), fresh = log.rfind("Training starts from the beginning");
  if (at == std::string::npos) return fresh == std::string::npos ? -1 : 0;
  if (fresh != std::string::npos && fresh > at) return 0;
  return std::stoll(std::string(log.substr(at + resumed.size(), 20)));
}

/// Checks that no start after a kill lost a checkpoint.
/// Params: newest – for each number of restarts, the step of the newest complete checkpoint before the kill that caused
///                  the restart; 0: none
inline void expect_no_checkpoint_lost(const std::string& log, const std::vector<int64_t>& newest) {
  int64_t required = 0;
  size_t at = 0;
  for (size_t restart = 0; at != std::string::npos; ++restart) {
    const size_t end = log.find("Restarting all", at + 1);
    const int64_t start = last_start_step(std::string_view(log).substr(at, end - at));
    if (restart < newest.size()) required = std::max(required, newest[restart]);
    if (start >= 0) {
      EXPECT_GE(start, required) << "restart " << restart << " lost a checkpoint:\n" << log;
    }
    if (end == std::string::npos) {
      EXPECT_GE(start, 0) << "the last start does not report its step:\n" << log;
    }
    at = end;
  }
}

}  // namespace bellows::train
