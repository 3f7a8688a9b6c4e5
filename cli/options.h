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

/// The command line is invalid: exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The target of `--json`: "" if not given, "-" for standard output, otherwise a file.
using JsonTarget = std::string;

struct TrainArguments {
  std::string recipe, data, model, out;
  std::vector<std::string> set;      ///< "key=value"
  std::vector<std::string> plugins;  ///< shared libraries with the user's models
  bool resume = false;
  bool accept_changes = false;  ///< resume even though changed settings change the results
  bool keys = false;            ///< list the recipe keys instead of training
  JsonTarget json;
};

struct LadderArguments {
  std::string recipe, data, model;
  std::vector<std::string> set, plugins;
  double target_accuracy = 0;    ///< 0 if not given: the recipe's, otherwise 0.97
  double max_seconds = 0;        ///< 0 if not given: no limit
  int64_t max_epochs = 0;        ///< 0 if not given: the ladder's default
  int64_t eval_every_steps = 0;  ///< 0: automatic
  bool memory = false;           ///< measure the techniques that save memory
  uint64_t memory_target = 0;    ///< find the fastest recipe with at most this peak in bytes; 0: no search
  bool quick = false;
  bool list = false;
  std::string html;          ///< file for the HTML report; "": none
  std::string write_recipe;  ///< file for the resulting recipe; "": none
  JsonTarget json;
};

struct PlanArguments {
  std::string recipe, model;
  std::vector<std::string> set, plugins;
  int64_t batch = 0;           ///< 0 if not given: the recipe's
  int64_t seq = 0, image = 0;  ///< 0 if not given: the model's usual size
  int64_t ranks = 1;
  uint64_t memory = 0;            ///< bytes of one device; 0 if not given: this machine's
  uint64_t fit = 0;               ///< bytes that the step must fit into; 0: no search
  double price = 0, step_ms = 0;  ///< price of one device per hour; time of a step; 0: not given
  std::string html, trace;        ///< files for the predicted step's timeline; "": none
  JsonTarget json;
};

struct SelectArguments {
  std::string run, data, split, by, out;
  double keep = 0;
  int64_t count = 0, add = 0, passes = 20, seed = 1;
  bool per_class = false;
  std::vector<std::string> plugins;  ///< shared libraries with the user's models
  JsonTarget json;
};

struct PackArguments {
  std::string source, destination;
  std::string split, select;           ///< the samples to convert
  std::string format, resize, encode;  ///< how they are written
  uint64_t shard_bytes = 0;            ///< 0 if not given: the library's default
  int64_t shard_samples = 0;           ///< 0 if not given: no limit
  int64_t threads = 0;                 ///< 0: one per core
  bool verify = false;                 ///< compare every sample with the source
  JsonTarget json;
};

struct BenchDataArguments {
  std::string url, split;
  std::string threads = "auto";  ///< "auto" or a number
  std::string trace;             ///< file for a Chrome trace; "": none
  int64_t batch = 64, prefetch = 4, cache_mb = 0;
  int64_t crop = 0;    ///< side of a random resized crop; 0: no crop
  int64_t epochs = 0;  ///< 0: for `seconds`
  double seconds = 10;
  bool shuffle = false;
  JsonTarget json;
};

struct LaunchArguments {
  comm::LaunchOptions options;
};

struct CheckpointArguments {
  std::string path;  ///< a checkpoint, or a run folder for its newest checkpoint
  std::string out;   ///< file to export to; "" for `info`
  bool verify = false;
  JsonTarget json;
};

struct DoctorArguments {
  JsonTarget json;
};

/// Settings of the command line, which override the recipe file.
struct RecipeOverrides {
  std::string data, model;
  std::vector<std::string> set;
};

/// Throws: UsageError if a key is unknown or a value is invalid
void apply_overrides(train::Recipe& recipe, const RecipeOverrides& overrides);
/// Throws: UsageError if the file cannot be read or is not a recipe
train::Recipe load_recipe(const std::string& path);
/// Throws: UsageError if a value is out of range, or the model or the device does not exist
void check_usable(const train::Recipe& recipe);

int run_train(const TrainArguments& arguments);
/// Lists the recipe keys.
int run_recipe_keys(const JsonTarget& target);
int run_ladder(const LadderArguments& arguments);
int run_plan(const PlanArguments& arguments);
int run_select(const SelectArguments& arguments);
int run_pack(const PackArguments& arguments);
int run_bench_data(const BenchDataArguments& arguments);
int run_launch(const LaunchArguments& arguments);
int run_checkpoint_info(const CheckpointArguments& arguments);
int run_checkpoint_export(const CheckpointArguments& arguments);
int run_doctor(const DoctorArguments& arguments);

/// Throws c10::Error if write_json() would fail, before the work starts.
void check_json_target(const JsonTarget& target);
/// Writes `text` to the target of `--json`. Throws: c10::Error if the file cannot be written
void write_json(const JsonTarget& target, const std::string& text);

}  // namespace bellows::cli
