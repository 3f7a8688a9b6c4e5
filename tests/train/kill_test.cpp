#include <ATen/ops/narrow.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "bellows/checkpoint/folder.h"
#include "bellows/core/seed.h"
#include "tests/cli/process.h"
#include "tests/support/slow_tests.h"
#include "tests/train/folder_watch.h"

namespace bellows::train {

namespace {

using checkpoint::Folder;
using checkpoint::State;
using testing::HasSubstr;

// What took how long is the only thing that may differ. Columns of "history", numbers of "progress":
constexpr int64_t history_columns = 6;  // behind them: seconds
constexpr int64_t progress_seconds[] = {1, 2, 3, 9};

struct Case {
  const char* name;
  int kills, slow_kills;  ///< in script/test, and with --slow
  int64_t save_steps;
  std::vector<std::string> recipe;
};

void PrintTo(const Case& setup, std::ostream* out) {
  *out << setup.name;
}

const Case setups[] = {
    {"Background",
     3,
     50,
     5,
     {"model=mlp", "image_size=8", "epochs=20", "precision=fp16", "amp_level=O2", "async_checkpoints=true",
      "save_top_k=2", "log=json", "logging_steps=4", "lr_schedule=one_cycle", "ema_decay=0.98",
      "augment=RandomResizedCrop(scale=(0.6, 1)), RandomHorizontalFlip, RandAugment(1, 3), MixUp(alpha=0.2), CutMix"}},
    {"Foreground",
     2,
     50,
     3,
     {"model=digits_resnet", "image_size=16", "epochs=4", "precision=bf16", "channels_last=true",
      "async_checkpoints=false", "optimizer=adamw", "lr=0.005", "lr_schedule=cosine", "ema_decay=0.9",
      "augment=crop_flip", "max_grad_norm=1", "eval_steps=7", "save_top_k=1", "log=json"}},
    {"Compiled",
     3,
     40,
     4,
     {"model=mlp", "image_size=8", "epochs=6", "compile=step", "optimizer=adamw", "lr=0.005", "lr_schedule=cosine",
      "augment=crop_flip", "max_grad_norm=1", "eval_steps=9", "log=json"}},
    {"Exported",
     1,
     20,
     4,
     {"model=" BELLOWS_SOURCE_DIR "/tests/goldens/exported/cnn.pt2", "image_size=8", "epochs=4", "batch_size=32",
      "optimizer=adamw", "lr=0.005", "lr_schedule=cosine", "eval_steps=9", "log=json"}},
};

std::vector<std::string> arguments(const Case& setup, const std::string& folder) {
  std::vector<std::string> result = {"train", "--data", cli::digits() + "/train-000.tar", "--out", folder, "--resume"};
  std::vector<std::string> recipe = setup.recipe;
  recipe.push_back("eval_data=" + cli::digits() + "/test-000.tar");
  recipe.push_back(c10::str("save_steps=", setup.save_steps));
  for (const std::string& item : recipe) result.insert(result.end(), {"--set", item});
  return result;
}

uint64_t first_seed() {
  const char* given = std::getenv("BELLOWS_KILL_SEED");
  return given ? std::strtoull(given, nullptr, 10) : std::random_device()();
}

/// A random moment: at the start of the process, around a save, or anywhere between two saves.
struct Moment {
  explicit Moment(uint64_t seed, int64_t saves_left) {
    RandomStream random(seed);
    const uint64_t kind = random.below(10);
    if (kind > 0) after_saves = 1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(saves_left) + 1));
    const double part = random.uniform();
    const double ms = kind == 0 ? 600 * part : kind < 7 ? 4 * part * part : 60 * part;
    pause = std::chrono::microseconds(static_cast<int64_t>(1000 * ms));
  }
  int64_t after_saves = 0;  ///< how many saves have begun in this process
  std::chrono::microseconds pause{};
};

/// One run, killed again and again.
class KilledRun {
 public:
  KilledRun(const Case& setup, std::string folder, int64_t steps)
      : setup_(setup), folder_(std::move(folder)), steps_(steps) {
    std::filesystem::create_directories(folder_);
  }

  /// Starts, or goes on, and kills the process. False: it reached its end before.
  bool kill_once(uint64_t seed) {
    const int64_t left = (steps_ - saved_) / setup_.save_steps;
    const Moment moment(seed, left);
    FolderWatch watch(folder_);
    cli::Process process({.arguments = arguments(setup_, folder_)});
    while (static_cast<int64_t>(watch.begun().size()) < std::min(moment.after_saves, left)) {
      if (!watch.update(30'000)) {
        ADD_FAILURE() << "no checkpoint came within 30 s: " << process.finish(0).err;
        return false;
      }
    }
    if (moment.after_saves <= left) {
      std::this_thread::sleep_for(moment.pause);
      process.signal(SIGKILL);
    }
    return check(process.finish(), watch) == -SIGKILL;
  }

  void finish() {
    FolderWatch watch(folder_);
    EXPECT_EQ(check(cli::run_bellows(arguments(setup_, folder_)), watch), 0);
  }

 private:
  /// It went on from the last checkpoint that was whole, saved one every few steps, and the last of these is there.
  int check(const cli::Outcome& outcome, FolderWatch& watch) {
    while (watch.update(0)) {
    }
    EXPECT_THAT(outcome.exit_code, testing::AnyOf(0, -SIGKILL)) << outcome.err;
    EXPECT_THAT(outcome.err, testing::Not(HasSubstr("damaged")));
    if (!watch.begun().empty() || outcome.exit_code == 0) {
      EXPECT_THAT(outcome.err,
                  HasSubstr(saved_ > 0 ? c10::str("from step ", saved_, " ") : "Training starts from the beginning"));
    }
    int64_t before = saved_;
    for (const int64_t step : watch.begun()) {
      const bool once_more = step == steps_ && step == before;  // with the last epoch's record
      EXPECT_TRUE(step == before + setup_.save_steps || once_more) << step << " after " << before;
      before = step;
    }
    if (!watch.finished().empty()) saved_ = watch.finished().back();
    EXPECT_LE(before - saved_, setup_.save_steps) << "more than one save was in flight";
    EXPECT_TRUE(saved_ == 0 || std::filesystem::exists(folder_ + "/" + name_of(saved_)));
    const bool inside = watch.finished().size() < watch.begun().size();
    std::printf("  %s at step %lld of %lld%s\n", outcome.exit_code == 0 ? "ended" : "saved",
                static_cast<long long>(saved_), static_cast<long long>(steps_), inside ? ", killed inside a save" : "");
    return outcome.exit_code;
  }

  static std::string name_of(int64_t step) {
    const std::string digits = std::to_string(step);
    return "step-" + std::string(12 - digits.size(), '0') + digits + ".pt";
  }

  const Case& setup_;
  std::string folder_;
  int64_t steps_;      ///< of the whole run
  int64_t saved_ = 0;  ///< step of the newest checkpoint
};

void expect_same_bits(const std::string& name, const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.sizes(), b.sizes()) << name;
  EXPECT_EQ(a.strides(), b.strides()) << name;
  ASSERT_EQ(a.scalar_type(), b.scalar_type()) << name;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  EXPECT_EQ(std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()), 0) << name;
}

/// Everything but the seconds that it took.
at::Tensor without_seconds(const std::string& name, const at::Tensor& tensor) {
  if (name == "history") return at::narrow(tensor, 1, 0, history_columns);
  if (name != "progress") return tensor;
  at::Tensor rest = tensor.clone();
  for (const int64_t i : progress_seconds) rest.mutable_data_ptr<double>()[i] = 0;
  return rest;
}

void expect_same_bits(const NamedTensors& a, const NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const std::string& name = a[i].first;
    ASSERT_EQ(name, b[i].first);
    expect_same_bits(name, without_seconds(name, a[i].second), without_seconds(name, b[i].second));
  }
}

std::vector<nlohmann::json> log_rows(const std::string& folder) {
  std::vector<nlohmann::json> rows;
  std::ifstream file(folder + "/log.jsonl");
  for (std::string line; std::getline(file, line);) {
    nlohmann::json row = nlohmann::json::parse(line);
    for (const char* key : {"seconds", "time", "train_seconds", "trained_seconds", "eval_seconds"}) row.erase(key);
    rows.push_back(std::move(row));
  }
  return rows;
}

void expect_same_end(const std::string& folder, const std::string& whole) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    EXPECT_THAT(entry.path().string(), testing::Not(HasSubstr(".tmp-"))) << "a killed save's file was left";
  Folder a(folder), b(whole);
  const State x = a.newest().value(), y = b.newest().value();
  EXPECT_EQ(x.step, y.step);
  EXPECT_EQ(x.epoch, y.epoch);
  EXPECT_EQ(x.batch, y.batch);
  expect_same_bits(x.model, y.model);
  expect_same_bits(x.optimizer, y.optimizer);
  expect_same_bits(x.rng, y.rng);
  expect_same_bits(x.extra, y.extra);
  EXPECT_EQ(log_rows(folder), log_rows(whole));
  EXPECT_FALSE(log_rows(whole).empty());
  ASSERT_EQ(a.best().size(), b.best().size());
  for (size_t i = 0; i < a.best().size(); ++i) {
    EXPECT_EQ(a.best()[i].step, b.best()[i].step);
    EXPECT_EQ(a.best()[i].score, b.best()[i].score);
  }
}

}  // namespace

class KillTest : public testing::TestWithParam<Case> {};

/// Set BELLOWS_KILL_SEED to the first seed of a run to have the same moments again.
TEST_P(KillTest, EveryResumeEndsWithTheBitsOfTheRunThatWasNotKilled) {
  const Case& setup = GetParam();
  const cli::Scratch scratch;
  const std::string whole = scratch / "whole";
  // Without kernels in the cache, which later processes find there.
  const cli::Outcome outcome = cli::run_bellows(arguments(setup, whole), {"BELLOWS_CACHE=" + (scratch / "cache")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const int64_t steps = Folder(whole).newest().value().step;
  uint64_t seed = first_seed();
  const int wanted = slow_tests() ? setup.slow_kills : setup.kills;
  for (int kills = 0, run = 0; kills < wanted && !HasFailure(); ++run) {
    const std::string folder = scratch / c10::str("run-", run);
    KilledRun killed(setup, folder, steps);
    bool going_on = true;
    for (; going_on && kills < wanted && !HasFailure(); ++seed) {
      SCOPED_TRACE(c10::str("kill ", kills + 1, ", seed ", seed));
      std::printf("kill %d, seed %llu\n", kills + 1, static_cast<unsigned long long>(seed));
      going_on = killed.kill_once(seed);
      kills += going_on;
    }
    SCOPED_TRACE(c10::str("run ", run, ", ended before seed ", seed));
    if (going_on && !HasFailure()) killed.finish();
    if (!HasFailure()) expect_same_end(folder, whole);
  }
}

INSTANTIATE_TEST_SUITE_P(All, KillTest, testing::ValuesIn(setups), [](const auto& one) { return one.param.name; });

}  // namespace bellows::train
