#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/data/dataset.h"
#include "bellows/data/text/tokenizer.h"
#include "bellows/train/recipe/recipe.h"

namespace bellows::train {

/// Which samples of a recipe's data are trained on, and which only evaluated on.
struct DataSplit {
  data::Dataset whole;  ///< what `data` names; of a folder the split "train", or all where it has no splits, or one
  /// Positions in it that are kept from training, ascending: a tenth of a folder that has no held-out split, where the
  /// recipe names no `eval_data` either. Which ones depends on the number of samples alone, so that no run trains on
  /// what another is evaluated on. Empty: nothing is.
  std::vector<int64_t> held_out;
  std::string eval_split;  ///< of the folder: "test", "val", "valid" or "validation"; "": it has none
  /// What is classified, by name: as `whole` says itself, or, where it does not and has to, as its labels are.
  std::vector<std::string> classes{};
  bool named_labels = false;                       ///< labels of `whole` are names of these
  std::optional<data::TextTokenizer> tokenizer{};  ///< the recipe's, opened once for all that reads texts

  /// Those that are not held out, ascending; of `ids` alone, which are ascending, too.
  std::vector<int64_t> trained() const;
  std::vector<int64_t> trained(const std::vector<int64_t>& ids) const;
  /// What was held out, as a line for people; "" when nothing was.
  std::string held_out_note() const;
  /// Of `whole`, with `classes`.
  data::DatasetInfo info() const;
};

/// Cost:   reads all labels where the recipe's num_classes is 0, or they are texts, and the data set names no classes
/// Throws: c10::ValueError – as data::open, data::open_tokenizer; several splits, none of them "train"
DataSplit split_data(const Recipe& recipe);

}  // namespace bellows::train
