#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/train/job.h"

namespace bellows::train {

/// Describes how a run was made: everything that determines whether it can be repeated bit-identically, and information
/// for readers of its results.
struct RunRecord {
  /// "libtorch" → "2.11.0", "threads" → "2"; environment variables as "env.OMP_NUM_THREADS". Includes versions, build
  /// flags, processor and its instruction sets, threads, switches of libtorch and the seed.
  std::map<std::string, std::string> facts;
  std::string recipe;  ///< YAML
  std::string data;    ///< data::fingerprint() of the training data

  bool operator==(const RunRecord&) const = default;
};

/// A difference between two runs.
struct RunDifference {
  std::string what;  ///< "threads", "recipe.lr", "data"
  std::string then;  ///< "" for none
  std::string now;
  bool changes_bits = false;  ///< results may differ

  /// "threads: 2 then, 4 now".
  std::string to_string() const;
};

/// Describes the current process.
/// Params: fingerprint – data::fingerprint() of the training data
/// Cost:   reads a few files of /proc: about 1 ms
RunRecord this_run(const Recipe& recipe, const std::string& fingerprint);

/// data::fingerprint() of the training and held-out data of a job.
struct DataPrints {
  std::string train;
  std::string eval;  ///< "" if there are none
};
/// Cost: reads hundreds of samples of each dataset; store the result
DataPrints data_prints(const Job& job);

std::string to_json(const RunRecord& record);
/// Params: where – names the text in errors
/// Throws: c10::ValueError if the text was not written by to_json()
RunRecord run_record_from_json(std::string_view json, const std::string& where = "run record");

/// Differences between two runs; those that change results come first. A fact that only one of them has, because it was
/// written by another version of Bellows, is not a difference. Missing keys of a recipe have their defaults.
/// Throws: c10::ValueError if a recipe is not YAML
std::vector<RunDifference> differences(const RunRecord& then, const RunRecord& now);

}  // namespace bellows::train
