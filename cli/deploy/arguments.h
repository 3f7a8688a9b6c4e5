#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options.h"

namespace CLI {
class App;
}

/// The verbs `bellows perf` and `bellows deploy`.
namespace bellows::cli {

/// Arguments of `bellows perf`.
struct PerfArguments {
  std::string model, version;  ///< version "": the newest one
  std::string url = "127.0.0.1:8000";
  std::vector<std::string> headers;     ///< "NAME:VALUE"
  std::string concurrency = "1", rate;  ///< levels; if `rate` is not "", the loop is open
  std::string arrivals = "constant", tensors = "binary";
  std::vector<std::string> shapes;  ///< "NAME:1,14"
  std::string data_file;            ///< "": random values
  int64_t connections = 256, batch_size = 1, vocabulary = 1000, seed = 1, max_windows = 10;
  double warmup = 1, window = 1, timeout = 30;  ///< seconds
  double stability = 10;                        ///< percent
  std::string chart;                            ///< file; "" if not written
  JsonTarget json;
};

/// Arguments of `bellows deploy`.
struct DeployArguments : TrainedArguments {
  DeployArguments() { batch_size = 1; }  // of the measured calls

  std::string subject;       ///< a run folder, a model file, or what --model accepts; "" if not set
  std::string target, name;  ///< name "": that of the model
  std::string backends;      ///< list with commas; "" for all
  double tolerance = 0.05;   ///< largest accepted difference, relative to the largest value
  double max_drop = 0.5;     ///< largest accepted loss of accuracy in percentage points
  double seconds = 2;        ///< measured time of each candidate
  int64_t max_batch_size = 8, length = 0, threads = 0;
  bool triton = false;  ///< only formats and back ends of stock Triton
  bool no_int8 = false;
  JsonTarget json;
};

/// Adds the verbs, see verb_options.h.
CLI::App* add_perf(CLI::App& app, PerfArguments& arguments);
CLI::App* add_deploy(CLI::App& app, DeployArguments& arguments);
/// Adds the options of `bellows deploy`, except for those of the trained model.
void add_deployment(CLI::App* verb, DeployArguments& arguments);

int run_perf(const PerfArguments& arguments);
int run_deploy(const DeployArguments& arguments);

}  // namespace bellows::cli
