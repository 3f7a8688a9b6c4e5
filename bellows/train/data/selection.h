#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/data/dataset.h"
#include "bellows/data/select/subset.h"

namespace bellows::train {

/// Options of `bellows select`: select samples for training from labeled ones, or samples to label next.
struct Selection {
  std::string run;    ///< folder of a run with its data, model and statistics; or
  std::string data;   ///< a dataset, for `random` without a run
  std::string split;  ///< of `data`, if it is a folder with several splits; "": train, or the only one
  /// From labeled samples: forgetting, el2n, loss, margin, entropy (data::Difficulty), random. For labeling (`add` >
  /// 0): least_confidence, margin, entropy, bald, k_center, random.
  std::string by = "forgetting";
  double keep = 0;         ///< share to keep, hardest first; or
  int64_t count = 0;       ///< number to keep; or
  int64_t add = 0;         ///< number to label next, in addition to the samples of the run's subset
  bool per_class = false;  ///< keep the share in each class
  int64_t passes = 20;     ///< number of Monte Carlo dropout passes for BALD
  uint64_t seed = 1;
};

/// Checks the options before any file is read.
/// Throws: c10::ValueError if a rule is unknown (the message suggests the nearest name and lists all) or options do not
///         fit
void check_selection(const Selection& selection);

/// Selects samples, never from those that are held out for evaluation (data_split.h). With `add`, the result includes
/// the run's subset, because the next round trains on both.
/// Throws: c10::ValueError if a name, number or file does not fit
data::Subset select_samples(const Selection& selection);

/// Options for selecting the most informative samples of a pool.
struct PoolChoice {
  std::string by = "entropy";  ///< least_confidence, margin, entropy, bald, k_center, random
  int64_t count = 0;
  int64_t passes = 20;  ///< for bald
  uint64_t seed = 1;
};

/// Returns positions of `count` samples in `pool` that are not in `labelled`, ascending. It does not read the labels of
/// the pool. k_center uses the model's outputs.
/// Numerics: reproducible: dropout for bald is seeded, and the generators are restored
/// Cost:     one pass over the pool, `passes` for bald, none for random; memory for all outputs (bald: times passes)
/// Throws:   c10::ValueError if the strategy is unknown (the message suggests the nearest name), the pool has too few
///           samples, or bald is used without dropout
std::vector<int64_t> choose_to_label(const Model& model, const data::Dataset& pool,
                                     const std::vector<int64_t>& labelled, const PoolChoice& choice);

}  // namespace bellows::train
