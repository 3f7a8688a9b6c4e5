// The largest batch size that the search finds, beside the true limit, which trials of many batch sizes find.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include "bellows/core/stats.h"
#include "bellows/tune/batch_size.h"
#include "bellows/tune/trial_process.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

using train::Recipe;

struct Subject {
  const char *model, *optimizer;
  int64_t length;  ///< max_length or image_size; 0: the model's own
  int64_t memory_mb;
};

constexpr Subject subjects[] = {{"mlp", "sgd", 0, 1024},
                                {"digits_resnet", "adamw", 0, 1024},
                                {"bert-20m", "adamw", 64, 1536},
                                {"gpt2-small.json", "adamw", 64, 1536},
                                {"unet", "adamw", 64, 2048}};

/// GPT-2 with 4 layers and 6 million parameters.
constexpr const char* small_gpt2 =
    R"({"model_type": "gpt2", "n_layer": 4, "n_embd": 256, "n_head": 4, "n_positions": 128, "vocab_size": 8192})";

Recipe recipe_of(const Subject& subject, const std::string& folder) {
  Recipe recipe;
  recipe.model = subject.model;
  if (recipe.model.ends_with(".json")) recipe.model = folder + "/" + recipe.model;
  recipe.optimizer = subject.optimizer;
  recipe.batch_size = 8;
  recipe.num_workers = 0;
  if (subject.length > 0 && recipe.model == "unet") recipe.image_size = subject.length;
  if (subject.length > 0 && recipe.model != "unet") recipe.max_length = subject.length;
  return recipe;
}

/// Whether a batch fits, in a process of its own with the limit. Trials of the search are the same.
class Truth {
 public:
  Truth(const Recipe& recipe, std::string folder, std::vector<std::string> command, int64_t memory)
      : folder_(std::move(folder)), program_{.command = std::move(command), .recipe_option = ""} {
    file_.recipe = recipe;
    file_.trial_bytes = memory;
    file_.study.space.parameters = {
        {.name = "batch_size", .kind = tune::Parameter::Kind::integer, .low = 1, .high = 1 << 20, .step = 1}};
  }

  /// The largest batch that fits, to 10 %, without any prediction.
  int64_t largest() {
    int64_t low = 0, high = 1;
    while (fits(high)) low = high, high *= 2;
    while (static_cast<double>(high) > 1.1 * static_cast<double>(low) + 1) {
      const int64_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    return low;
  }
  bool killed_by_system() const { return killed_; }

 private:
  bool fits(int64_t batch) {
    tune::TrialProcess process(file_, {.values = {static_cast<double>(batch)}}, folder_ + "/truth", program_, signals_);
    while (!process.ended()) {
      process.watch();
      TORCH_CHECK(tune::stop_signal(signals_) == 0, "stopped on request.");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    const std::string failure = process.result().failure;
    killed_ = killed_ || failure.find("signal 9") != std::string::npos;
    return failure.empty();
  }

  const std::string folder_;
  const tune::TrialProgram program_;
  tune::StudyFile file_;
  const comm::Signals signals_;
  bool killed_ = false;
};

int run(const Options& options) {
  Report report("batch_size", options);
  std::string folder = (std::filesystem::temp_directory_path() / "bench-batch-XXXXXX").string();
  TORCH_CHECK(mkdtemp(folder.data()), "bench batch_size: cannot create ", folder, ".");
  std::ofstream(folder + "/gpt2-small.json") << small_gpt2;
  std::string program = options.extra.at("command");
  if (program.empty()) program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "bellows";
  const std::vector<std::string> command = {program, "tune", "--measure-batch"};
  for (const Subject& subject : subjects) {
    const bool chosen = std::string_view(subject.model).find(options.extra.at("case")) != std::string_view::npos;
    if (!chosen || !report.has_time_for(subject.model)) continue;
    const Recipe recipe = recipe_of(subject, folder);
    const int64_t memory = subject.memory_mb << 20;
    const tune::BatchSearch found = tune::search_batch_sizes(recipe, folder, command, memory);
    TORCH_CHECK(found.signal == 0, "stopped on request.");
    Truth truth(recipe, folder, command, memory);
    const auto largest = static_cast<double>(truth.largest()), ours = static_cast<double>(found.largest);
    const bool killed = std::ranges::any_of(found.trials, [](const tune::BatchTrial& trial) {
      return trial.failure.find("signal 9") != std::string::npos;
    });
    const auto too_large = std::ranges::count_if(found.trials, [](const auto& trial) { return !trial.fits(); });
    report.add({.work = std::string(subject.model) + ", " + std::to_string(subject.memory_mb) + " MiB",
                .metric = "largest batch size (limit: found by trials of all sizes)",
                .unit = "samples",
                .ours = ours,
                .limit = largest,
                .equal = ours >= largest / 2 && ours <= 2 * largest && !killed && !truth.killed_by_system(),
                .note = "fastest batch size " + std::to_string(found.fastest) + "; " +
                        std::to_string(found.trials.size()) + " trials, " + std::to_string(too_large) +
                        " of them too large; none was killed by the system"});
  }
  std::filesystem::remove_all(folder);
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Searches for the largest batch size of five models under a limit of 1 to 2 GiB, and compares it with "
      "the limit that trials without a prediction find.\nFails if they differ by more than a factor of two. "
      "--command: the bellows program [default: the one beside this program]. --case: part of the names of the models "
      "to "
      "run.",
      run, {{"case", ""}, {"command", ""}});
}
