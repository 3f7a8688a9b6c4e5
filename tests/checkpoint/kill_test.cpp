#include <gmock/gmock.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "bellows/checkpoint/async_saver.h"
#include "bellows/core/seed.h"
#include "tests/checkpoint/support.h"

namespace bellows::checkpoint {

namespace {

constexpr int64_t tensor_count = 12, tensor_size = 3000;

/// Every value says which save it belongs to.
State state_of_save(int64_t step) {
  State state;
  state.step = step;
  for (int64_t i = 0; i < tensor_count; ++i)
    state.model.emplace_back(c10::str("w", i), at::full({tensor_size}, static_cast<float>(step)));
  return state;
}

void expect_whole(const State& state) {
  for (const auto& [name, tensor] : state.model)
    EXPECT_TRUE(torch::equal(tensor, at::full({tensor_size}, static_cast<float>(state.step)))) << state.step;
}

/// Saves without end, each third one among the best, too.
[[noreturn]] void save_for_ever(const std::string& path, int64_t step, bool in_background) {
  try {
    Folder folder(path, 2);
    AsyncSaver saver;
    for (;;) {
      const State state = state_of_save(++step);
      const auto score = static_cast<double>(step);
      if (in_background) {
        saver.save(folder, state);
        if (step % 3 == 0) saver.save_best(folder, state, score, 2);
      } else {
        folder.save(state);
        if (step % 3 == 0) folder.save_best(state, score, 2);
      }
    }
  } catch (...) {
    _exit(3);
  }
}

}  // namespace

TEST(Kill, AnyMomentLeavesALoadableCheckpoint) {
  const TemporaryFolder temporary;
  RandomStream random(2026);
  const auto begin = std::chrono::steady_clock::now();
  Folder(temporary.path(), 2).save(state_of_save(0));
  const auto one_save = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
  int64_t last = 0;
  for (int round = 0; round < 25; ++round) {
    const pid_t child = fork();
    if (child == 0) save_for_ever(temporary.path(), last, round % 2 == 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(2) + one_save * (10 * random.uniform()));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << WEXITSTATUS(status);
    const CapturedLog log;
    Folder folder(temporary.path(), 2);
    const auto state = folder.newest();
    ASSERT_TRUE(state) << "round " << round;
    ASSERT_GE(state->step, last);
    expect_whole(*state);
    last = state->step;
    for (const ScoredCheckpoint& best : folder.best()) {
      EXPECT_EQ(best.score, static_cast<double>(best.step));
      expect_whole(load(best.path));
    }
    EXPECT_LE(folder.best().size(), 2u);
    EXPECT_EQ(log.text(), "") << "a half-written file stood under its name";
  }
  EXPECT_GT(last, 10) << "the children hardly saved anything";
}

}  // namespace bellows::checkpoint
