#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bellows/serve/model_config.h"
#include "bellows/serve/v2_protocol.h"

namespace bellows::serve {

class LoadedModel;

/// Returns a version of a model that is ready.
/// Params: version – "": the newest one
/// Throws: RequestError if there is none
using FindModel = std::function<std::shared_ptr<LoadedModel>(const std::string& name, const std::string& version)>;

/// The steps of an ensemble, and the tensors between them. The first tensors are the inputs of the ensemble.
struct EnsemblePlan {
  struct Step {
    std::string model{}, version{};  ///< version "": the newest one
    std::shared_ptr<const ModelSignature> signature{};
    std::vector<size_t> inputs{};                      ///< for each input of the model: its tensor
    std::vector<std::pair<size_t, size_t>> outputs{};  ///< outputs of the model and their tensors
  };
  std::vector<std::string> tensors{};  ///< names
  std::vector<Step> steps{};
  std::vector<size_t> outputs{};  ///< for each output of the ensemble: its tensor
};

/// Connects the steps and checks that they fit together: all models are ready, all tensors exist and come from one step,
/// dtypes and sizes agree, and no step depends on its own results.
/// Throws: c10::ValueError that names the step and the tensor
EnsemblePlan plan_ensemble(const ModelSignature& ensemble, const std::vector<EnsembleStep>& steps,
                           const FindModel& find);

/// Returns a text such as `step 2 (model "bert")`.
std::string step_text(size_t index, const std::string& model);

/// Returns whether two versions of a model have the same inputs and outputs.
bool same_tensors(const ModelSignature& first, const ModelSignature& second);

}  // namespace bellows::serve
