#pragma once

#include <functional>
#include <string>

#include "bellows/data/loader/batch.h"
#include "bellows/train/job.h"

namespace bellows::train {

/// Finds the cause of a loss or gradient that is NaN or infinite, and describes it in a sentence. If the batch, a
/// parameter or a buffer contains a bad value, the sentence names the samples or the tensor. Otherwise, it names the
/// first operator that produced a bad value, with module and call site.
/// Params: replay – runs forward and backward of the batch again; this overwrites gradients
/// Cost:   about one slow step
std::string blame_bad_value(const Job& job, const data::Batch& batch, const std::function<void()>& replay);

/// The part of blame_bad_value() that only reads: names bad samples of the batch, or a bad parameter or buffer. Returns
/// "" if all of them are finite.
std::string bad_input_or_weight(const Job& job, const data::Batch& batch);

/// Lists ids, such as "17, 4, 203 and 29 more".
std::string id_list(const std::vector<int64_t>& ids);

}  // namespace bellows::train
