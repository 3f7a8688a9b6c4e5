#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bellows/optim/state/state.h"
#include "tests/parallel/zero/support.h"
#include "tests/support/temporary_folder.h"

namespace bellows::parallel::testing::zero {

/// What a run leaves on rank 0: the weights and the complete optimizer state.
struct RunResult {
  std::vector<at::Tensor> values;
  NamedTensors state;
};

inline void expect_same_run(const RunResult& got, const RunResult& expected) {
  ASSERT_FALSE(expected.values.empty());
  expect_equal(got.values, expected.values);
  expect_equal(got.state, expected.state);
}

/// Calls `train` on each rank and returns the result of rank 0.
inline RunResult result_of(int ranks, const std::function<RunResult(const comm::Group&)>& train) {
  RunResult result;
  run_ranks(ranks, [&](const comm::Group& group) {
    RunResult mine = train(group);
    if (group.rank() == 0) result = std::move(mine);
  });
  return result;
}

/// Everything in files, with the smallest window.
inline ShardOptions in_files(ShardOptions options, const std::string& folder) {
  options.offload_parameters = options.stage == 3 ? Offload::file : Offload::none;
  options.offload_state = Offload::file;
  options.offload_folder = folder;
  options.offload_window_bytes = 1;
  return options;
}

}  // namespace bellows::parallel::testing::zero
