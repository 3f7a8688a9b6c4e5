#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/train/job.h"

namespace bellows::train {

/// What a run ran on and with: all that decides whether it can be repeated bit for bit, and what a reader of its
/// results wants to know.
struct RunRecord {
  /// "libtorch" → "2.11.0", "threads" → "2"; environment variables as "env.OMP_NUM_THREADS". Versions, build flags,
  /// processor and its instruction sets, threads, switches of libtorch, seed.
  std::map<std::string, std::string> facts;
  std::string recipe;  ///< YAML
  std::string data;    ///< data::fingerprint() of the training data

  bool operator==(const RunRecord&) const = default;
};

/// One thing that is not as it was.
struct RunDifference {
  std::string what;  ///< "threads", "recipe.lr", "data"
  std::string then;  ///< "" for none
  std::string now;
  bool changes_bits = false;  ///< the run's numbers can come out differently

  /// `threads: 2 then, 4 now`.
  std::string to_string() const;
};

/// Of this process as it is set up now.
/// Params: fingerprint – data::fingerprint() of the training data
/// Cost:   reads a few files of /proc: about 1 ms
RunRecord this_run(const Recipe& recipe, const std::string& fingerprint);

/// data::fingerprint() of a job's training and held-out data.
struct DataPrints {
  std::string train;
  std::string eval;  ///< "": there are none
};
/// Cost: reads hundreds of samples of each: keep the result
DataPrints data_prints(const Job& job);

std::string to_json(const RunRecord& record);
/// Params: where – names the text in errors
/// Throws: c10::ValueError – not what to_json() writes
RunRecord run_record_from_json(std::string_view json, const std::string& where = "run record");

/// What is not as it was, what changes bits first. A fact that only one of the two has, because another version of
/// Bellows wrote the other, is no difference; a recipe's key that is missing has its default.
/// Throws: c10::ValueError – a recipe that is not YAML
std::vector<RunDifference> differences(const RunRecord& then, const RunRecord& now);

}  // namespace bellows::train
