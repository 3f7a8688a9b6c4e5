#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "bellows/serve/request_queue.h"

namespace bellows::serve {

/// Calls an instance of a model with inputs in the order of the model's inputs.
using RunModel = std::function<std::vector<at::Tensor>(std::span<const at::Tensor>)>;

/// Runs a batch and calls `done` of each request.
///
/// The inputs of several requests are joined along the first axis, and each request receives its rows of the outputs. If
/// the model throws, each request of the batch is tried alone once, so that a request fails only because of its own data.
/// Params:  requests – at least one; several only if the inputs have a batch axis
///          batched  – whether the tensors have a batch axis. The first axis of each output must then have as many rows as
///                     the inputs
///         padding  – pads the inputs to one length, and cuts the outputs; null: the inputs are not changed
/// Threads: may be called from any thread
void execute_batch(const RunModel& run, std::vector<PendingRequest>& requests, bool batched,
                   ModelStatistics& statistics, const Padding* padding = nullptr);

/// Returns the error that a client receives for an exception of a model.
RequestError model_error(const std::exception_ptr& thrown);

/// Counts the result in the statistics, and calls `done`.
void answer_request(PendingRequest& request, InferenceResult result, ModelStatistics& statistics);

}  // namespace bellows::serve
