#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bellows/train/inference/model_evaluation.h"

namespace bellows::cli {

/// A column of a table that compares models.
struct ModelColumn {
  std::string title;
  train::ModelEvaluation evaluation;
  int64_t parameters = 0;  ///< number of parameters; 0: not shown
};

/// Returns a table of the accuracy, loss, latency, size and parameters of models. Notes compare the last model with the
/// first one.
/// Params: columns – two or three models
std::string model_table(const std::vector<ModelColumn>& columns);

/// Returns the values of such a table as JSON.
nlohmann::ordered_json evaluation_json(const train::ModelEvaluation& evaluation);

}  // namespace bellows::cli
