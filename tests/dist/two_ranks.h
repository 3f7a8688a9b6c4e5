#pragma once

#include <string>

/// Tests that need several processes: the test starts its own program once a rank, limited to one test, and waits.
namespace bellows::testing {

/// This process's place among the ranks; absent in the process that only starts them.
struct RankPlace {
  int rank = 0, world = 1;
  std::string folder;  ///< shared by the ranks: rendezvous files
};

/// The place, or null in the starting process.
const RankPlace* rank_place();

/// Runs the current test in `world` processes and waits at most `limit_s` seconds; then all are killed.
/// Returns: "" when every rank's test passed; else what happened to which rank, with the output of the failed ones
std::string run_ranks(int world, int limit_s);

}  // namespace bellows::testing
