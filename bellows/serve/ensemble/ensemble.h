#pragma once

#include <memory>
#include <vector>

#include "bellows/serve/batch/request_runner.h"
#include "bellows/serve/ensemble/ensemble_plan.h"
#include "bellows/serve/statistics.h"

namespace bellows::serve {

/// Returns the runner of an ensemble.
///
/// A request pins the versions of all steps, so they are not unloaded before its end. A step is submitted to its model as
/// soon as its inputs are there, so that independent steps run at the same time. No thread waits for a step. The first
/// error of a step is the answer, with the name of the step. The timeout of the request limits the time until its last
/// step is submitted.
/// Throws: c10::ValueError if the steps do not fit together
std::unique_ptr<RequestRunner> make_ensemble(std::shared_ptr<const ModelSignature> signature,
                                             const std::vector<EnsembleStep>& steps, FindModel find,
                                             std::shared_ptr<ModelStatistics> statistics);

}  // namespace bellows::serve
