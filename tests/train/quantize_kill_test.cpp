// The real command, killed while it quantizes a model and writes the file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "bellows/core/seed.h"
#include "bellows/system/file.h"
#include "tests/cli/process.h"
#include "tests/support/slow_tests.h"

namespace bellows::train {

namespace {

namespace fs = std::filesystem;

/// Returns the folder of a trained model of 45 MB, so that writing takes some time.
std::string train_model(const cli::Scratch& scratch) {
  const std::string run = scratch / "run";
  const cli::Outcome outcome =
      cli::run_bellows({"train", "--data", cli::digits() + "/test-000.tar", "--model", "resnet18", "--set", "epochs=1",
                        "--set", "image_size=32", "--set", "eval_split=none", "--out", run});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return run;
}

std::vector<std::string> quantize_arguments(const std::string& run, const std::string& file,
                                            const std::string& method) {
  return {"quantize",  "--run", run,     "--data", cli::digits() + "/test-000.tar", "--method", method,
          "--samples", "8",     "--out", file};
}

/// Whether a file of this folder is being written, or was left by a killed process. The command also creates an empty file
/// at its start, to check whether the folder is writable.
bool is_writing(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::error_code removed;
    const uintmax_t size = entry.path().string().find(".tmp-") == std::string::npos ? 0 : entry.file_size(removed);
    if (!removed && size > 0) return true;
  }
  return false;
}

void remove_temporary(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().string().find(".tmp-") != std::string::npos) fs::remove(entry.path());
  }
}

/// Waits until the command begins to write, and then for a random time. Every fourth kill comes earlier.
void wait_for_moment(const fs::path& folder, int kill, std::chrono::microseconds whole, RandomStream& random) {
  if (kill % 4 == 3) {
    std::this_thread::sleep_for(whole * random.uniform());
    return;
  }
  const auto end = std::chrono::steady_clock::now() + 3 * whole;
  while (!is_writing(folder) && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  const double part = random.uniform();
  std::this_thread::sleep_for(std::chrono::microseconds(20'000) * (part * part * part));
}

std::string content_of(const std::string& file) {
  return fs::exists(file) ? read_text_file(file) : "";
}

int kills_wanted() {
  return slow_tests() ? 60 : 5;
}

}  // namespace

TEST(QuantizeKillTest, AFileIsOldOrNewAndNeverPartial) {
  const cli::Scratch scratch;
  const std::string run = train_model(scratch), before = scratch / "before.safetensors",
                    after = scratch / "after.safetensors";
  ASSERT_EQ(cli::run_bellows(quantize_arguments(run, before, "weight-only")).exit_code, 0);
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(cli::run_bellows(quantize_arguments(run, after, "static")).exit_code, 0);
  const auto whole = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
  const std::string old_content = read_text_file(before), new_content = read_text_file(after);
  ASSERT_FALSE(old_content == new_content);

  RandomStream random(7);
  fs::create_directory(scratch / "out");
  const std::string folder = scratch / "out", file = folder + "/model.safetensors";
  int unfinished = 0;
  for (int kill = 0; kill < kills_wanted(); ++kill) {
    remove_temporary(folder);
    const bool replaces = kill % 2 == 1;
    fs::remove(file);
    if (replaces) fs::copy_file(before, file);
    cli::Process process({.arguments = quantize_arguments(run, file, "static")});
    wait_for_moment(folder, kill, whole, random);
    process.signal(SIGKILL);
    process.finish();
    const std::string found = content_of(file);
    const bool finished = found == new_content;
    EXPECT_TRUE(finished || found == (replaces ? old_content : "")) << "kill " << kill << " left a damaged file";
    unfinished += is_writing(folder);
    std::printf("kill %d: %s\n", kill, finished ? "finished" : is_writing(folder) ? "unfinished" : "not begun");
  }
  // Of a few kills on a busy machine, it can happen that none comes while the file is written.
  EXPECT_TRUE(unfinished > 0 || kills_wanted() < 60) << "no kill came while the file was written";
  ASSERT_EQ(cli::run_bellows(quantize_arguments(run, file, "static")).exit_code, 0);
  EXPECT_TRUE(read_text_file(file) == new_content);
}

}  // namespace bellows::train
