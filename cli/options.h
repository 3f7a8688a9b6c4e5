#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "bellows/comm/launch/launcher.h"
#include "bellows/plan/simulator/simulated_job.h"

namespace bellows::train {
struct Recipe;
}

namespace bellows::cli {

/// Exit codes of the `bellows` command.
inline constexpr int exit_done = 0, exit_failed = 1, exit_usage = 2;

/// Thrown if the command line is invalid. The command then exits with code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The destination of `--json`: "" if the option is not set, "-" for standard output, otherwise the path of a file.
using JsonTarget = std::string;

/// Arguments of `bellows train`.
struct TrainArguments {
  std::string recipe, data, model, out;
  std::vector<std::string> set;      ///< recipe settings, each as "key=value"
  std::vector<std::string> plugins;  ///< shared libraries with the user's models
  bool resume = false;
  bool accept_changes = false;  ///< resume even though changed settings change the results
  bool keys = false;            ///< list the recipe keys instead of training
  JsonTarget json;
};

/// Arguments of `bellows ladder`.
struct LadderArguments {
  std::string recipe, data, model;
  std::vector<std::string> set, plugins;
  double target_accuracy = 0;    ///< if 0, the accuracy in the recipe, or 0.97 if the recipe has none
  double max_seconds = 0;        ///< if 0, there is no limit
  int64_t max_epochs = 0;        ///< if 0, the default of the ladder
  int64_t eval_every_steps = 0;  ///< if 0, the ladder chooses the number of steps
  bool memory = false;           ///< measure the techniques that save memory
  uint64_t memory_target = 0;    ///< find the fastest recipe with at most this peak in bytes; if 0, do not search
  bool quick = false;            ///< use shorter timed windows and one seed
  bool list = false;             ///< describe the techniques instead of measuring
  /// Measure techniques for inference. "": no, "-": without a value, otherwise a run folder or a recipe file.
  std::string inference;
  std::string run, weights, split;   ///< of a ladder for inference; each is "" if not set
  int64_t batch_size = 0;            ///< of a ladder for inference; if 0, that of the evaluations of training
  int64_t ranks = 1;                 ///< compare the techniques for this many ranks; if 1, do not compare
  std::vector<std::string> compare;  ///< compare these recipe files, each as "FILE" or "FILE:RANKS"
  double max_drop = -1;              ///< largest loss of accuracy in percentage points; -1: the default of the ladder
  std::string html;                  ///< file for the HTML report; if "", there is no report
  std::string write_recipe;          ///< file for the resulting recipe; if "", the recipe is not written
  JsonTarget json;
};

/// Arguments of `bellows plan`.
struct PlanArguments {
  std::string recipe, model;
  std::vector<std::string> set, plugins;
  int64_t batch = 0;           ///< if 0, the batch size in the recipe
  int64_t seq = 0, image = 0;  ///< if 0, the usual input size of the model
  int64_t ranks = 1;
  double link_gbps = 0;           ///< bandwidth between the ranks in Gbit/s; 0 if not set
  bool measure_link = false;      ///< measure this bandwidth on this machine
  uint64_t memory = 0;            ///< memory of one device in bytes; if 0, the memory of this machine
  uint64_t fit = 0;               ///< bytes that the step must fit into; if 0, do not search for a recipe
  bool device_map = false;        ///< decide where the weights are in inference, instead of predicting a training step
  uint64_t host_memory = 0;       ///< host memory for weights in bytes, with `device_map`
  double price = 0, step_ms = 0;  ///< price of one device per hour, and time of a step; each is 0 if not set
  std::string html, trace;        ///< files for the timeline of the predicted step; a file is not written if ""
  JsonTarget json;
  std::string prices;         ///< price list; if "", machines are not compared
  int64_t epoch_samples = 0;  ///< samples of an epoch, with `prices`; if 0, those of the recipe's data
  std::string log;            ///< log.jsonl of a run, whose epochs replace those of the recipe; "" if not set
};

/// Arguments of `bellows profile`.
struct ProfileArguments {
  std::string recipe, data, model;
  std::vector<std::string> set, plugins;
  int64_t steps = 10;        ///< number of timed steps
  bool batch_sweep = false;  ///< also measure larger batches
  std::string html, trace;   ///< files; a file is not written if ""
  std::string tensorboard;   ///< folder for a trace per rank; not written if ""
  JsonTarget json;
};

/// Arguments of `bellows simulate`.
struct SimulateArguments {
  std::string model, cluster, mesh;  ///< each is "" if not set
  bool measure = false;              ///< write the description of this machine instead
  int64_t ranks = 0;                 ///< if set, compare all meshes of this many ranks
  std::string recompute = "nothing";
  bool contiguous = false;    ///< the axis context does not use zig-zag order
  train::SimulatedJob job{};  ///< other settings
  JsonTarget json;
};

/// Arguments of `bellows tune`.
struct TuneArguments {
  std::string study;
  std::vector<std::string> plugins;
  std::string out;             ///< folder of the study; if "", the path of the study file without its extension
  int64_t trials = -1;         ///< if negative, the number in the study file
  int64_t seed = -1;           ///< if negative, the seed in the study file
  int64_t jobs = 1;            ///< number of parallel trials
  bool lr_range = false;       ///< run a learning-rate range test instead; `study` is then a recipe file
  bool batch_size = false;     ///< search for the batch size instead; `study` is then a recipe file
  bool measure_batch = false;  ///< take a few steps of the recipe `study`, for a search of the batch size
  uint64_t memory = 0;         ///< bytes for a process, with `batch_size`; 0: 90 % of the available memory
  std::string write_recipe;    ///< file for the recipe with the fastest batch size; "" if not set
  bool resume = false;
  std::string html;  ///< file for the HTML report; if "", there is no report
  JsonTarget json;
};

/// Arguments of `bellows import`.
struct ImportArguments {
  std::string file;   ///< a configuration of DeepSpeed
  int64_t ranks = 1;  ///< number of ranks of the training job
  std::string out;    ///< file for the recipe; if "", standard output
  JsonTarget json;
};

/// Arguments of `bellows schedule`.
struct ScheduleArguments {
  std::string schedule;                                       ///< name of a schedule, or a file
  int64_t ranks = 0, micro_batches = 0, stages_per_rank = 0;  ///< if 0, the default
  double forward_ms = 1, backward_ms = 2, transfer_ms = 0;
  std::string html, trace, out;  ///< files; "" if not written
  JsonTarget json;
};

/// Arguments of `bellows select`.
struct SelectArguments {
  std::string run, data, split, by, out;
  double keep = 0;
  int64_t count = 0, add = 0, passes = 20, seed = 1;
  bool per_class = false;
  std::vector<std::string> plugins;  ///< shared libraries with the user's models
  JsonTarget json;
};

/// The trained model and the data of `bellows evaluate` and `bellows predict`.
struct TrainedArguments {
  std::string run;                     ///< run folder; "" if `weights` are given
  std::string recipe, model, weights;  ///< used without `run`; each is "" if not set
  std::string data, split;             ///< the samples; "" for those of the recipe
  std::string dtype;                   ///< "fp32" or "bf16"; "" for the precision of the recipe
  std::vector<std::string> set, plugins;
  int64_t batch_size = 0;      ///< if 0, the batch size of the evaluations of training
  bool compile = false;        ///< compile the forward pass with frozen weights
  uint64_t weight_memory = 0;  ///< memory for the weights in bytes; if 0, all weights are in memory
  std::string offload_folder;  ///< for weights that are not in a safetensors file; "" if not set
};

/// Arguments of `bellows evaluate`.
struct EvaluateArguments : TrainedArguments {
  JsonTarget json;
};

/// Arguments of `bellows predict`.
struct PredictArguments : TrainedArguments {
  std::vector<std::string> files;
  int64_t top = 0;     ///< number of classes to print with their probabilities; if 0, only the best one
  std::string output;  ///< file for the predictions; if "", standard output
};

/// Arguments of `bellows quantize`.
struct QuantizeArguments : TrainedArguments {
  std::string method = "static", rounding = "nearest";
  std::string range;            ///< rule by which ranges of activations are calibrated; "" if not set
  int64_t bits = 8, group = 0;  ///< group 0: one scale per output channel
  double smooth = 0;            ///< alpha of SmoothQuant; 0: off
  bool correct_bias = false, strict = false;
  bool keep_embeddings = false;   ///< in floating point
  std::vector<std::string> skip;  ///< patterns of layers that stay in floating point
  int64_t samples = 0;            ///< for calibration; if 0, the default
  double max_drop = -1;           ///< largest loss of accuracy in percentage points; -1: no limit
  std::string out, html;          ///< files; "" if not written
  JsonTarget json;
};

/// Arguments of `bellows export`.
struct ExportArguments : TrainedArguments {
  std::string subject;  ///< a run folder, or what --model accepts; "" if not set
  std::string format = "onnx", output;
  std::vector<std::string> dynamic;  ///< axes that may vary, as "INPUT:AXIS=NAME"
  std::vector<std::string> sizes;    ///< recorded sizes, as "NAME=A,B,C"
  int64_t length = 0;                ///< tokens, steps or pixels of the example; 0: the intended size
  uint64_t external_data_above = 0;  ///< bytes; 0: the default of the library
  bool no_check = false;             ///< do not compare the written file with the model
  JsonTarget json;
};

/// Arguments of `bellows distill`.
struct DistillArguments {
  std::string teacher;                     ///< run folder; "" if a resumed run uses its saved teacher
  std::string student, recipe, data, out;  ///< each is "" if not set
  std::vector<std::string> set, plugins;
  double weight = 0, temperature = 0;  ///< if 0, that of the recipe
  bool compare = false;                ///< also train the student without its teacher
  bool resume = false;
  bool accept_changes = false;  ///< resume even though changed settings change the results
  JsonTarget json;
};

/// Arguments of `bellows pack`.
struct PackArguments {
  std::string source, destination;
  std::string split, select;           ///< which samples are converted
  std::string format, resize, encode;  ///< how the samples are written
  uint64_t shard_bytes = 0;            ///< size of a shard; if 0, the default of the library
  int64_t shard_samples = 0;           ///< number of samples per shard; if 0, there is no limit
  int64_t threads = 0;                 ///< if 0, one thread per core
  bool verify = false;                 ///< compare every sample with the source
  JsonTarget json;
};

/// Arguments of `bellows make-data`.
struct MakeDataArguments {
  std::string destination, format;
  int64_t train = 10000, test = 2000, size = 64, seed = 1;
  int64_t threads = 0;  ///< if 0, one thread per core
  JsonTarget json;
};

/// Arguments of `bellows bench-data`.
struct BenchDataArguments {
  std::string url, split;
  std::string threads = "auto";  ///< "auto" or a number
  std::string trace;             ///< file for a Chrome trace; if "", no trace is written
  int64_t batch = 64, prefetch = 4, cache_mb = 0;
  int64_t crop = 0;    ///< side of a random resized crop in pixels; if 0, images are not cropped
  int64_t epochs = 0;  ///< if 0, loading ends after `seconds`
  double seconds = 10;
  bool shuffle = false;
  JsonTarget json;
};

/// Arguments of `bellows bench-model`.
struct BenchModelArguments {
  std::vector<std::string> files;
  std::string backends, providers;  ///< lists with commas; "" for all back ends and for the CPU
  std::string dtype = "fp32";       ///< of matmuls in back ends that can choose it
  std::vector<std::string> inputs;  ///< "NAME=FILE.npy" or "NAME=SIZES:DTYPE"
  std::vector<std::string> sizes;   ///< of axes that may vary, as "NAME=N"
  int64_t batch_size = 1, vocabulary = 1000;
  int64_t length = 0;   ///< of other axes that may vary; 0: the default of the library
  int64_t threads = 0;  ///< if 0, those of libtorch
  double seconds = 3;
  double tolerance = -1;  ///< largest accepted difference; -1: the default
  JsonTarget json;
};

/// Arguments of `bellows serve`.
struct ServeArguments {
  std::string repository;
  std::vector<std::string> models;  ///< loaded at the start; empty: all
  int64_t poll_seconds = 0;         ///< if 0, the server does not search for changes
  bool no_model_control = false;
  int64_t threads = 0;  ///< of one call; if 0, one per core
  std::string address = "127.0.0.1";
  int64_t port = 8000, http_threads = 2;
  int64_t grpc_port = -1, grpc_threads = 2;  ///< port -1: Triton's port, if Bellows was built with gRPC
  bool no_grpc = false, shared_memory = false;
  bool access_log = false;
  int64_t max_connections = 1024, max_queue = 1024, drain_seconds = 30;
  uint64_t max_body = 0;  ///< bytes; if 0, the default of the library
  std::string tls_certificate, tls_key, token_file;
  bool no_authentication = false, open_health = false, open_metrics = false;
  std::string trace_file;
  int64_t trace_rate = 10;  ///< requests per second; if 0, all
};

/// Arguments of `bellows launch`.
struct LaunchArguments {
  comm::LaunchOptions options;
};

/// Arguments of `bellows checkpoint info` and `bellows checkpoint export`.
struct CheckpointArguments {
  std::string path;  ///< a checkpoint, or a run folder, whose newest checkpoint is used
  std::string out;   ///< file to which the weights are exported; "" for `info`
  uint64_t max_file_size = 0;
  bool verify = false;
  JsonTarget json;
};

/// Arguments of `bellows cache list`, `clear`, `keygen`, `export` and `import`.
struct CacheArguments {
  std::string bundle;  ///< `export` and `import`
  std::string key;     ///< a key file; for `import`, "" if BELLOWS_TRUSTED_KEYS names the file
  JsonTarget json;
};

/// Arguments of `bellows doctor`.
struct DoctorArguments {
  JsonTarget json;
};

/// Settings on the command line that override those of the recipe file.
struct RecipeOverrides {
  std::string data, model;
  std::vector<std::string> set;
};

/// Overrides settings of the recipe with those on the command line.
/// Throws: UsageError if a key is unknown or a value is invalid
void apply_overrides(train::Recipe& recipe, const RecipeOverrides& overrides);
/// Reads a recipe from a YAML file.
/// Throws: UsageError if the file cannot be read or is not a recipe
train::Recipe load_recipe(const std::string& path);
/// Checks the values of a recipe.
/// Throws: UsageError if a value is out of range, or if the model or the device does not exist
void check_usable(const train::Recipe& recipe);
/// Checks that this process was not started as one of several ranks.
/// Params: reason, advice – for the message: the reason follows "must run as a single process"
/// Throws: UsageError if there are several ranks
void check_alone(const std::string& verb, const std::string& reason, const std::string& advice);

// Each function run_… runs one verb and returns the exit code.

int run_train(const TrainArguments& arguments);
/// Lists the recipe keys (`bellows train --keys`).
int run_recipe_keys(const JsonTarget& target);
int run_ladder(const LadderArguments& arguments);
int run_plan(const PlanArguments& arguments);
int run_profile(const ProfileArguments& arguments);
int run_schedule(const ScheduleArguments& arguments);
int run_simulate(const SimulateArguments& arguments);
int run_tune(const TuneArguments& arguments);
int run_import(const ImportArguments& arguments);
int run_select(const SelectArguments& arguments);
int run_evaluate(const EvaluateArguments& arguments);
int run_predict(const PredictArguments& arguments);
int run_quantize(const QuantizeArguments& arguments);
int run_export(const ExportArguments& arguments);
int run_distill(const DistillArguments& arguments);
int run_pack(const PackArguments& arguments);
int run_make_data(const MakeDataArguments& arguments);
int run_bench_data(const BenchDataArguments& arguments);
int run_bench_model(const BenchModelArguments& arguments);
int run_serve(const ServeArguments& arguments);
int run_launch(const LaunchArguments& arguments);
int run_checkpoint_info(const CheckpointArguments& arguments);
int run_checkpoint_export(const CheckpointArguments& arguments);
/// Params: action – the subcommand of `bellows cache`
int run_cache(const std::string& action, const CacheArguments& arguments);
int run_doctor(const DoctorArguments& arguments);

/// Checks that write_json() can write to the target. Call this function before the work starts.
/// Throws: c10::Error if the file cannot be written
void check_output_file(const JsonTarget& target);
/// Writes `text` to the destination of `--json`.
/// Throws: c10::Error if the file cannot be written
void write_json(const JsonTarget& target, const std::string& text);

}  // namespace bellows::cli
