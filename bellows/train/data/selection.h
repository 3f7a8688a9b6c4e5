#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bellows/core/model.h"
#include "bellows/data/dataset.h"
#include "bellows/data/select/subset.h"

namespace bellows::train {

/// What `bellows select` is asked for: samples to train on out of labelled ones, or samples to label next.
struct Selection {
  std::string run;    ///< folder of a run: its data, its model, its statistics; or
  std::string data;   ///< a data set, for `random` without a run
  std::string split;  ///< of `data`, where it is a folder with several; "": train, or the only one
  /// Out of labelled samples: forgetting, el2n, loss, margin, entropy (data::Difficulty), random. To be labelled
  /// (`add` > 0): least_confidence, margin, entropy, bald, k_center, random.
  std::string by = "forgetting";
  double keep = 0;         ///< share to keep, hardest first; or
  int64_t count = 0;       ///< how many to keep; or
  int64_t add = 0;         ///< how many to label next, beside the samples of the run's subset
  bool per_class = false;  ///< each class keeps its share
  int64_t passes = 20;     ///< of bald, with dropout on
  uint64_t seed = 1;
};

/// Whether what is asked for makes sense, before any file is looked at.
/// Throws: c10::ValueError – an unknown rule (nearest match; all that there are), a rule or a number that does not fit
void check_selection(const Selection& selection);

/// Chooses, never of the samples that are held out for evaluation (data_split.h). Of `add`, the result holds the run's
/// subset too: it is what the next round trains on.
/// Throws: c10::ValueError – a name, a number or a file that does not fit
data::Subset select_samples(const Selection& selection);

/// Which rows of a pool a model would learn most from.
struct PoolChoice {
  std::string by = "entropy";  ///< least_confidence, margin, entropy, bald, k_center, random
  int64_t count = 0;
  int64_t passes = 20;  ///< of bald
  uint64_t seed = 1;
};

/// Positions of `count` samples in `pool` that are not in `labelled`, ascending. The labels of the pool are not looked at.
/// k_center works on the model's outputs.
/// Numerics: repeatable: bald's dropout is seeded, and the generators are put back
/// Cost:     one pass over the pool, `passes` for bald, none for random; memory for all outputs (bald: times passes)
/// Throws:   c10::ValueError – an unknown strategy (nearest match), more wanted than there are, bald without dropout
std::vector<int64_t> choose_to_label(const Model& model, const data::Dataset& pool,
                                     const std::vector<int64_t>& labelled, const PoolChoice& choice);

}  // namespace bellows::train
