#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "bellows/comm/launch/launcher.h"

namespace bellows::train {
struct Recipe;
}

namespace bellows::cli {

inline constexpr int exit_done = 0, exit_failed = 1, exit_usage = 2;

/// The command line asks for something that is not there: exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Where `--json` goes: "" not wanted, "-" standard output, else a file.
using JsonTarget = std::string;

struct TrainArguments {
  std::string recipe, data, model, out;
  std::vector<std::string> set;      ///< "key=value"
  std::vector<std::string> plugins;  ///< shared libraries with models of the user's
  bool resume = false;
  bool accept_changes = false;  ///< resume although something differs that changes bits
  JsonTarget json;
};

struct LadderArguments {
  std::string recipe, data, model;
  std::vector<std::string> set, plugins;
  double target_accuracy = 0;    ///< 0, not given: the recipe's, or 0.97
  double max_seconds = 0;        ///< 0, not given: no limit
  int64_t max_epochs = 0;        ///< 0, not given: the ladder's own
  int64_t eval_every_steps = 0;  ///< 0: as the ladder chooses
  bool memory = false;           ///< climb the techniques that save memory
  uint64_t memory_target = 0;    ///< bytes; find the fastest recipe that stays under them; 0: no search
  bool quick = false;
  bool list = false;
  std::string html;          ///< file for the page with charts; "": none
  std::string write_recipe;  ///< file for what was found; "": none
  JsonTarget json;
};

struct PlanArguments {
  std::string recipe, model;
  std::vector<std::string> set, plugins;
  int64_t batch = 0;           ///< 0, not given: the recipe's
  int64_t seq = 0, image = 0;  ///< 0, not given: what the model is meant for
  int64_t ranks = 1;
  uint64_t memory = 0;            ///< bytes of one device; 0, not given: this machine's
  uint64_t fit = 0;               ///< bytes that the step has to fit into; 0: no search
  double price = 0, step_ms = 0;  ///< of an hour of one device; 0: not given
  std::string html, trace;        ///< files of the predicted step's timeline; "": none
  JsonTarget json;
};

struct SelectArguments {
  std::string run, data, split, by, out;
  double keep = 0;
  int64_t count = 0, add = 0, passes = 20, seed = 1;
  bool per_class = false;
  std::vector<std::string> plugins;  ///< libraries with models of the user's
  JsonTarget json;
};

struct PackArguments {
  std::string source, destination;
  std::string split, select;           ///< which samples
  std::string format, resize, encode;  ///< what becomes of them
  uint64_t shard_bytes = 0;            ///< 0, not given: as the library chooses
  int64_t shard_samples = 0;           ///< 0, not given: no limit
  int64_t threads = 0;                 ///< 0: all
  bool verify = false;                 ///< compare every sample
  JsonTarget json;
};

struct BenchDataArguments {
  std::string url, split;
  std::string threads = "auto";  ///< or a number
  std::string trace;             ///< file for a Chrome trace; "": none
  int64_t batch = 64, prefetch = 4, cache_mb = 0;
  int64_t crop = 0;    ///< side of a random resized crop; 0: pictures as they are
  int64_t epochs = 0;  ///< 0: by the clock
  double seconds = 10;
  bool shuffle = false;
  JsonTarget json;
};

struct LaunchArguments {
  comm::LaunchOptions options;
};

struct CheckpointArguments {
  std::string path;  ///< a checkpoint, or a run's folder: its newest
  std::string out;   ///< of export
  bool verify = false;
  JsonTarget json;
};

struct DoctorArguments {
  JsonTarget json;
};

/// What the command line says about a recipe, over what its file says.
struct RecipeOverrides {
  std::string data, model;
  std::vector<std::string> set;
};
// What was typed wrong is wrong use, exit code 2: on the command line, and in a recipe that it names.

/// Throws: UsageError – an unknown key, a value that does not fit
void apply_overrides(train::Recipe& recipe, const RecipeOverrides& overrides);
/// Throws: UsageError – the file cannot be read, or is no recipe
train::Recipe load_recipe(const std::string& path);
/// Throws: UsageError – values out of range, no such model or device
void check_usable(const train::Recipe& recipe);

int run_train(const TrainArguments& arguments);
int run_ladder(const LadderArguments& arguments);
int run_plan(const PlanArguments& arguments);
int run_select(const SelectArguments& arguments);
int run_pack(const PackArguments& arguments);
int run_bench_data(const BenchDataArguments& arguments);
int run_launch(const LaunchArguments& arguments);
int run_checkpoint_info(const CheckpointArguments& arguments);
int run_checkpoint_export(const CheckpointArguments& arguments);
int run_doctor(const DoctorArguments& arguments);

/// Throws now what write_json would throw after minutes of work.
void check_json_target(const JsonTarget& target);
/// Writes `text` to where `--json` points. Throws: c10::Error – a file that cannot be written
void write_json(const JsonTarget& target, const std::string& text);

}  // namespace bellows::cli
