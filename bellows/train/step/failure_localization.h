#pragma once

#include <functional>
#include <string>

#include "bellows/data/loader/batch.h"
#include "bellows/train/job.h"

namespace bellows::train {

/// What is behind a loss or a gradient that is not finite: a bad value in the batch (which samples), in a parameter or
/// buffer (which), or the first operator that makes one, with its module and call site. A sentence.
/// Params: replay – runs forward and backward of the batch again; gradients are lost
/// Cost:   one slow step
std::string blame_bad_value(const Job& job, const data::Batch& batch, const std::function<void()>& replay);

/// "17, 4, 203 and 29 more".
std::string id_list(const std::vector<int64_t>& ids);

}  // namespace bellows::train
