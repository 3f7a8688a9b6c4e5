#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/data/dataset.h"
#include "bellows/data/select/subset.h"

namespace bellows::train {

/// Options of `bellows select`, which selects labeled samples to train on, or unlabeled samples to label next. Set
/// either `run` or `data`, and one of `keep`, `count` and `add`.
struct Selection {
  std::string run;    ///< folder of a run, which provides data, model and sample statistics
  std::string data;   ///< dataset to select from without a run; requires `by = "random"`
  std::string split;  ///< split of `data`; if empty, "train" or the only split
  /// Name of the rule. With `keep` or `count`, it is forgetting, el2n, loss, margin, entropy (see data::Difficulty) or
  /// random. With `add`, it is least_confidence, margin, entropy, bald, k_center or random.
  std::string by = "forgetting";
  double keep = 0;         ///< share of the labeled samples to keep: the hardest, or random ones with `by = "random"`
  int64_t count = 0;       ///< number of labeled samples to keep
  int64_t add = 0;         ///< number of samples to label next, in addition to the run's subset
  bool per_class = false;  ///< keep the same share of each class
  int64_t passes = 20;     ///< number of Monte Carlo dropout passes for BALD
  uint64_t seed = 1;
};

/// Checks the options without reading files.
/// Throws: c10::ValueError if the rule is unknown (the message suggests the nearest name and lists all rules), or if
///         options are out of range or contradict each other
void check_selection(const Selection& selection);

/// Selects samples. It never selects samples that are held out for evaluation (see data_split.h). With `add`, the
/// result also contains the run's subset, because the next training run uses both.
/// Throws: c10::ValueError if check_selection() throws, the run has no checkpoint or statistics, or its data has
///         changed
data::Subset select_samples(const Selection& selection);

/// Options for choosing the most informative samples of a pool.
struct PoolChoice {
  std::string by = "entropy";  ///< least_confidence, margin, entropy, bald, k_center or random
  int64_t count = 0;
  int64_t passes = 20;  ///< number of dropout passes for bald
  uint64_t seed = 1;
};

/// Chooses `count` samples of `pool` to label next and returns their positions in ascending order. Samples in
/// `labelled` are not chosen. The function does not read the labels of the pool. k_center compares the model's outputs.
/// Numerics: deterministic; dropout for bald is seeded, and the generators are restored afterwards
/// Cost:     one pass over the pool (`passes` passes for bald, none for random), and memory for all outputs of these
///           passes
/// Throws:   c10::ValueError if the strategy is unknown (the message suggests the nearest name), the pool has too few
///           samples, or bald is used with a model without dropout
std::vector<int64_t> choose_to_label(const Model& model, const data::Dataset& pool,
                                     const std::vector<int64_t>& labelled, const PoolChoice& choice);

}  // namespace bellows::train
