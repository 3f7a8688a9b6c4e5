#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bellows/data/dataset.h"
#include "bellows/train/inference/trained_model.h"

namespace bellows::train {

/// The inputs of predict(), in their order: samples of files or of a dataset, and files that cannot be opened.
struct PredictionInputs {
  /// Consecutive inputs from one place.
  struct Part {
    std::string file;               ///< path of the file; empty for a dataset
    std::string error;              ///< why the file cannot be opened; the part then has one input, which has no sample
    bool rows = false;              ///< the file contains several samples
    int64_t size = 1;               ///< number of inputs
    std::vector<int64_t> ids = {};  ///< positions of the samples in the dataset; empty: 0, 1, …
  };

  std::vector<Part> parts;
  std::optional<data::Dataset> samples;  ///< samples of all parts without an error, one after another

  int64_t size() const;
};

/// Opens files for a model. Which files it accepts depends on the model's input:
/// - Image models: PNG and JPEG files, and folders, of which all such files are read, sorted by path.
/// - Text models: files with the suffix .txt, which have one text per line, and CSV and JSON Lines files, which have one
///   text per row. Other files without a known format are read as lines of text, too, such as /dev/stdin.
/// - All other models: CSV and JSON Lines files, and files of other dataset formats.
///
/// A file that cannot be opened becomes a part with an error.
/// Throws: c10::ValueError if `files` is empty
PredictionInputs open_prediction_files(const TrainedModel& trained, const std::vector<std::string>& files);

/// Opens a dataset for predictions. Labels are not read.
/// Params: data  – a dataset, or the recipe's `data` if empty
///         split – name of a split. If empty, this is "test", or the only split. If `data` is empty, too, the samples are
///                 the recipe's held-out data
/// Throws: c10::ValueError like data::open(), or if the recipe has no held-out data
PredictionInputs open_prediction_data(const TrainedModel& trained, const std::string& data, const std::string& split);

}  // namespace bellows::train
