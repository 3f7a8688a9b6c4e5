#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/data/dataset.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

struct ResolvedJob;

/// Divides a recipe's data into samples for training and for evaluation.
struct DataSplit {
  /// The data that `data` names. For a folder, the split "train", or all if it has no splits, or its only one.
  data::Dataset whole;
  /// Positions in `whole` that are not used for training, ascending: a tenth of a folder without a held-out split if
  /// the recipe names no `eval_data`, or the share that `eval_split` names. They depend only on the numbers of samples,
  /// so that no run trains on evaluation samples of another. Empty: none.
  std::vector<int64_t> held_out;
  std::string eval_split;  ///< split of the folder: "test", "val", "valid" or "validation"; "": none
  /// Class names: those that `whole` declares, or else, if names are needed, those in its labels.
  std::vector<std::string> classes{};
  bool named_labels = false;  ///< the labels of `whole` are class names

  /// Samples that are not held out, ascending; of `ids` only, which must be ascending, too.
  std::vector<int64_t> trained() const;
  std::vector<int64_t> trained(const std::vector<int64_t>& ids) const;
  /// Describes the held-out samples; "" if there are none.
  std::string held_out_note() const;
  /// The information of `whole`, with `classes`.
  data::DatasetInfo info() const;
};

/// Cost:   reads all labels if the dataset declares no classes and num_classes is 0 or the labels are texts
/// Params: job – the result of resolve_model()
/// Throws: c10::ValueError like data::open(), or if there are several splits without "train", or `eval_split` does not
///         exist
DataSplit split_data(const ResolvedJob& job);

/// Opens a dataset of the recipe. For classification, the recipe's `target` field becomes the label.
data::Dataset open_part(const ResolvedJob& job, const std::string& place, const data::OpenOptions& options);

}  // namespace bellows::train
