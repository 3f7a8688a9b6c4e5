#include "bellows/checkpoint/async_saver.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <torch/torch.h>

#include <atomic>
#include <thread>

#include "bellows/core/grad_mode.h"
#include "tests/checkpoint/sample.h"
#include "tests/checkpoint/support.h"

namespace bellows::checkpoint {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Views, shared memory, gaps between elements, repeated elements, complex numbers as they are and conjugated.
State awkward_state() {
  State state = sample_state();
  const at::Tensor table = torch::randn({6, 5}), complex = torch::randn({3}, at::kComplexFloat);
  state.model.emplace_back("tied.a", table);
  state.model.emplace_back("tied.b", table);
  state.model.emplace_back("row", table[2]);
  state.extra.emplace_back("column", table.select(1, 3));
  state.extra.emplace_back("every_other", torch::randn({9}).slice(0, 1, 9, 2));
  state.extra.emplace_back("repeated", torch::randn({1, 4}).expand({3, 4}));
  state.extra.emplace_back("complex", complex);
  state.extra.emplace_back("conjugated", torch::conj(torch::randn({3}, at::kComplexFloat)));
  return state;
}

}  // namespace

TEST(AsyncSaver, FilesAreThoseOfASaveInTheForeground) {
  const TemporaryFolder one, two;
  const State state = awkward_state();
  Folder foreground(one.path()), background(two.path());
  const std::string expected = read_bytes(foreground.save(state));
  AsyncSaver saver;
  for (int round = 0; round < 2; ++round) {  // the second one in memory that is used again
    saver.save(background, state);
    saver.wait();
    EXPECT_EQ(read_bytes(background.path_of(state.step)), expected);
  }
  expect_equal(*background.newest(), state);
}

TEST(AsyncSaver, TheStateMayChangeAtOnce) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path(), 100);
  AsyncSaver saver;
  const at::Tensor weight = torch::zeros({300'000});
  for (int64_t step = 1; step <= 6; ++step) {
    weight.fill_(static_cast<double>(step));
    saver.save(folder, {.model = {{"w", weight}}, .step = step});
    weight.fill_(-1);
  }
  saver.wait();
  EXPECT_GT(saver.waited_s(), 0);
  for (int64_t step = 1; step <= 6; ++step) {
    const State state = load(folder.path_of(step));
    EXPECT_TRUE(torch::equal(state.model[0].second, torch::full_like(weight, static_cast<double>(step)))) << step;
  }
}

TEST(AsyncSaver, AnotherModelAndAnotherGuardBetweenSaves) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path());
  AsyncSaver saver;
  {
    const inference_mode guard;
    saver.save(folder, {.model = {{"w", torch::ones({8})}, {"v", torch::ones({3}, at::kLong)}}, .step = 1});
  }
  saver.save(folder, {.model = {{"w", torch::full({5}, 2.0).requires_grad_(true)}}, .step = 2});
  saver.save(folder, {.model = {{"w", torch::full({8}, 3.0)}, {"v", torch::full({3}, 3)}}, .step = 3});
  saver.wait();
  EXPECT_THAT(folder.list(), ElementsAre(folder.path_of(1), folder.path_of(2), folder.path_of(3)));
  EXPECT_TRUE(torch::equal(load(folder.path_of(2)).model.at(0).second, torch::full({5}, 2.0)));
  EXPECT_TRUE(torch::equal(load(folder.path_of(3)).model.at(1).second, torch::full({3}, 3)));
}

// The writer is held up by a pipe that nobody reads: it stands under the checkpoint's name.
TEST(AsyncSaver, OneSaveIsInFlightAtMost) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path());
  ASSERT_EQ(mkfifo(folder.path_of(1).c_str(), 0600), 0);
  AsyncSaver saver;
  saver.save(folder, {.model = {{"w", torch::ones({8})}}, .step = 1});
  std::atomic<bool> second_begun = false;
  std::thread owner([&] {
    saver.save(folder, {.model = {{"w", torch::ones({8})}}, .step = 2});
    second_begun = true;
    saver.wait();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(second_begun);
  EXPECT_FALSE(std::filesystem::exists(folder.path_of(2)));
  EXPECT_FALSE(read_bytes(folder.path_of(1)).empty());  // lets it go on
  owner.join();
  EXPECT_EQ(load(folder.path_of(2)).step, 2);
  EXPECT_GT(saver.waited_s(), 0);
}

TEST(AsyncSaver, ErrorsComeWithTheNextCallOrIntoTheLog) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path());
  const State sparse = {.model = {{"w", torch::eye(3).to_sparse()}}, .step = 1};
  const State good = {.model = {{"w", torch::ones({3})}}, .step = 2};
  AsyncSaver saver;
  saver.save(folder, sparse);
  EXPECT_THAT(error_of([&] { saver.wait(); }), HasSubstr("to_dense()"));
  saver.save(folder, sparse);
  EXPECT_THROW(saver.save(folder, good), c10::ValueError);
  EXPECT_THAT(folder.list(), ElementsAre());
  saver.save(folder, good);
  saver.wait();
  EXPECT_THAT(folder.list(), ElementsAre(folder.path_of(2)));
  const CapturedLog log;
  AsyncSaver().save(folder, sparse);
  EXPECT_THAT(log.text(), HasSubstr("the last save failed"));
}

TEST(AsyncSaver, SavesTheBestToo) {
  const TemporaryFolder temporary;
  Folder folder(temporary.path());
  AsyncSaver saver;
  std::vector<bool> saved;
  for (const int64_t step : {1, 2, 3}) {
    const State state = {.model = {{"w", torch::full({50}, step)}}, .step = step};
    saved.push_back(saver.save_best(folder, state, step == 2 ? 0.1 : 0.5, 1));
  }
  saver.wait();
  EXPECT_EQ(saved, std::vector<bool>({true, false, false}));
  ASSERT_EQ(folder.best().size(), 1u);
  EXPECT_EQ(load(folder.best()[0].path).step, 1);
  EXPECT_THROW(saver.save_best(folder, {}, 0.5, 0), c10::ValueError);
}

}  // namespace bellows::checkpoint
