#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bellows/export/recordings.h"

namespace bellows::export_detail {

/// Exports the recordings to a temporary file, and runs the file with the inputs of the first recording.
using RunExported = std::function<std::vector<at::Tensor>(const Recordings&)>;

/// Finds the operator at which an exported file starts to differ from the recorded operators. The recordings are exported
/// once more, with the floating-point results of all operators as outputs.
/// Params:  low_precision – accept the differences of 16-bit and 8-bit arithmetic, as in Comparison
/// Returns: a sentence that names the operator and the weights that it reads. It is empty if no operator differs by more
///          than is accepted, or if such a file cannot be exported
std::string first_difference(const Recordings& recordings, const RunExported& run, bool low_precision);

/// Calls `check`, which compares a file with the function.
/// Throws: c10::ValueError of `check`, with the sentence of first_difference()
void check_operators(const Recordings& recordings, const std::function<void()>& check, const RunExported& run,
                     bool low_precision);

}  // namespace bellows::export_detail
