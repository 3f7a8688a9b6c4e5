#pragma once

#include <functional>
#include <string>

#include "bellows/data/loader/batch.h"
#include "bellows/train/job.h"

namespace bellows::train {

/// Finds the cause of a loss or gradient that is not finite, as a sentence: a bad value in the batch (with the
/// samples), in a parameter or buffer (with its name), or the first operator that produced one, with module and call
/// site.
/// Params: replay – runs forward and backward of the batch again; gradients are lost
/// Cost:   one slow step
std::string blame_bad_value(const Job& job, const data::Batch& batch, const std::function<void()>& replay);

/// Lists ids: "17, 4, 203 and 29 more".
std::string id_list(const std::vector<int64_t>& ids);

}  // namespace bellows::train
