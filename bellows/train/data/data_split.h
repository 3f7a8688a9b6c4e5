#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/data/dataset.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

struct ResolvedJob;

/// Divides a recipe's data into training samples and evaluation samples.
struct DataSplit {
  /// The data that `data` names. For a folder, this is the split "train", its only split, or all samples if it has no
  /// splits.
  data::Dataset whole;
  /// Positions in `whole` that are not used for training, in ascending order. The list is empty if no samples are held
  /// out.
  /// - If `eval_split` is a share, that share of the samples is held out.
  /// - If the recipe sets neither `eval_data` nor `eval_split`, and `data` is a folder without an evaluation split, a
  ///   tenth of the samples is held out.
  /// The positions depend only on the size of the dataset and the share. Runs with different seeds therefore hold out
  /// the same samples.
  std::vector<int64_t> held_out;
  std::string eval_split;  ///< split for evaluation, such as "test" or "val"; empty if there is none
  /// Class names that `whole` declares. If it declares none and the task needs names, they are collected from the
  /// labels.
  std::vector<std::string> classes{};
  bool named_labels = false;  ///< true if the labels of `whole` are class names

  /// Returns the positions of the samples that are not held out, in ascending order. The second overload selects them
  /// from `ids`, which must be in ascending order.
  std::vector<int64_t> trained() const;
  std::vector<int64_t> trained(const std::vector<int64_t>& ids) const;
  /// Describes the held-out samples. The description is empty if there are none.
  std::string held_out_note() const;
  /// Returns the information about `whole`, with `classes` as the class names.
  data::DatasetInfo info() const;
};

/// Splits the data of a resolved recipe into training and evaluation data.
/// Params: job – the result of resolve_model()
/// Cost:   reads all labels if the task is classification, the dataset declares no classes, and num_classes is 0 or the
///         labels are class names
/// Throws: RecipeError if `eval_split` is not a share, "none" or a split of the data, or if it is the training split.
///         c10::ValueError if the data cannot be opened (see data::open()), for example because there are several
///         splits, but no "train"
DataSplit split_data(const ResolvedJob& job);

/// Opens a dataset of the recipe. For classification, the field that the recipe's `target` names becomes the label.
data::Dataset open_part(const ResolvedJob& job, const std::string& place, const data::OpenOptions& options);

}  // namespace bellows::train
