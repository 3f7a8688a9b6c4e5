#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/train/job.h"

namespace bellows::train {

/// Describes how a run was created. It contains all settings that must match for a run to be reproduced
/// bit-identically, and information for readers of the results.
struct RunRecord {
  /// Versions, build flags, processor and instruction sets, threads, libtorch settings and the seed. Examples:
  /// "libtorch" → "2.11.0", "threads" → "2". Environment variables have names such as "env.OMP_NUM_THREADS".
  std::map<std::string, std::string> facts;
  std::string recipe;  ///< YAML
  std::string data;    ///< data::fingerprint() of the training data

  bool operator==(const RunRecord&) const = default;
};

/// A difference between two runs.
struct RunDifference {
  std::string what;  ///< such as "threads", "recipe.lr" or "data"
  std::string then;  ///< value in the earlier run; empty if it is missing
  std::string now;
  bool changes_bits = false;  ///< the difference can change results

  /// Returns a text such as "threads: 2 before, 4 now".
  std::string to_string() const;
};

/// Describes the current process.
/// Params: fingerprint – data::fingerprint() of the training data
/// Cost:   about 1 ms; reads a few files in /proc
RunRecord this_run(const Recipe& recipe, const std::string& fingerprint);

/// The data::fingerprint() of the training data and of the held-out data of a job.
struct DataPrints {
  std::string train;
  std::string eval;  ///< empty if there is no held-out data
};
/// Cost: reads hundreds of samples of each dataset, so store the result
DataPrints data_prints(const Job& job);

std::string to_json(const RunRecord& record);
/// Parses the result of to_json().
/// Params: where – name of the text in error messages
/// Throws: c10::ValueError if the text was not written by to_json()
RunRecord run_record_from_json(std::string_view json, const std::string& where = "run record");

/// Returns the differences between two runs. Differences that change results come first. A fact that is missing in one
/// record is not a difference, because a different version of Bellows may have written that record. A missing
/// environment variable (`env.…`) is a difference. A different seed is not. Missing recipe keys have their default
/// values.
/// Throws: c10::ValueError if a recipe is not valid YAML
std::vector<RunDifference> differences(const RunRecord& then, const RunRecord& now);

}  // namespace bellows::train
