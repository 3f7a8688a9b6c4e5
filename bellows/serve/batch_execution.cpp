#include "bellows/serve/batch_execution.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/serve/batch/padding.h"
#include "bellows/serve/tensor_types.h"

namespace bellows::serve {

namespace {

/// Joins the inputs at `index` along the first axis.
at::Tensor joined(std::span<const PendingRequest> requests, size_t index, int64_t rows) {
  const at::Tensor& first = requests[0].inputs[index];
  if (requests.size() == 1) return first;
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes[0] = rows;
  at::Tensor all = at::empty(sizes, first.options());
  auto* to = static_cast<char*>(all.mutable_data_ptr());
  for (const PendingRequest& request : requests) {
    const at::Tensor& input = request.inputs[index];
    if (input.nbytes() > 0) std::memcpy(to, input.const_data_ptr(), input.nbytes());
    to += input.nbytes();
  }
  return all;
}

/// Joins the inputs at `index` along the first axis, and pads each one to this length.
at::Tensor padded(const Padding& padding, std::span<const PendingRequest> requests, size_t index, int64_t rows,
                  int64_t length) {
  const at::Tensor& first = requests[0].inputs[index];
  if (requests.size() == 1 && first.size(padding.axis()) == length) return first;
  at::Tensor all = padding.padding_for(index, first, rows, length);
  int64_t row = 0;
  for (const PendingRequest& request : requests) {
    const at::Tensor& input = request.inputs[index];
    all.narrow(0, row, request.rows).narrow(padding.axis(), 0, input.size(padding.axis())).copy_(input);
    row += request.rows;
  }
  return all;
}

/// The inputs of one call.
struct Joined {
  std::vector<at::Tensor> inputs{};
  int64_t rows = 0;
  std::optional<int64_t> length{};     ///< of the padded inputs; nothing if they are not padded
  std::vector<int64_t> own_lengths{};  ///< of each request
};

Joined join(std::span<const PendingRequest> requests, const Padding* padding) {
  Joined joined_requests;
  for (const PendingRequest& request : requests) {
    joined_requests.rows += request.rows;
    const auto length = padding ? padding->length(request.inputs) : std::nullopt;
    if (!length) continue;  // such a request is joined only with requests of equal sizes
    joined_requests.own_lengths.push_back(*length);
    joined_requests.length = std::max(joined_requests.length.value_or(0), *length);
  }
  if (joined_requests.length) joined_requests.length = padding->padded_length(*joined_requests.length);
  for (size_t i = 0; i < requests[0].inputs.size(); ++i) {
    const bool pads = joined_requests.length && padding->pads_input(i);
    joined_requests.inputs.push_back(pads ? padded(*padding, requests, i, joined_requests.rows, *joined_requests.length)
                                          : joined(requests, i, joined_requests.rows));
  }
  return joined_requests;
}

/// Returns the part of an output that belongs to one request.
at::Tensor part_of(const at::Tensor& output, const Joined& call, size_t index, const Padding* padding, size_t request,
                   int64_t row, int64_t rows) {
  const at::Tensor own = rows == call.rows ? output : output.narrow(0, row, rows);
  if (!call.length || !padding->cuts_output(index) || own.dim() <= padding->axis()) return own;
  const int64_t length = call.own_lengths[request];
  if (own.size(padding->axis()) != *call.length || length == *call.length) return own;
  return own.narrow(padding->axis(), 0, length).contiguous();
}

/// Calls the model, and checks the number of rows of its outputs.
std::vector<at::Tensor> call(const RunModel& run, const std::vector<at::Tensor>& inputs, int64_t rows, bool batched) {
  std::vector<at::Tensor> outputs = run(inputs);
  if (!batched) return outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const at::Tensor& output = outputs[i];
    TORCH_CHECK(output.defined() && output.dim() > 0 && output.size(0) == rows, "the inputs have ", rows,
                " rows, but output ", i, " has the shape ",
                output.defined() ? shape_text({output.sizes().data(), output.sizes().size()}) : "of no tensor",
                ". Set max_batch_size to 0 if the first axis is no batch axis.");
  }
  return outputs;
}

/// Runs requests in one call.
/// Throws: the exception of the model; no request is answered then
void run_together(const RunModel& run, std::span<PendingRequest> requests, bool batched, ModelStatistics& statistics,
                  const Padding* padding) {
  const auto start = Clock::now();
  const Joined together = join(requests, padding);
  const auto ready = Clock::now();
  std::vector<at::Tensor> outputs = call(run, together.inputs, together.rows, batched);
  const auto computed = Clock::now();
  std::vector<InferenceResult> results(requests.size());
  const at::AutoDispatchBelowADInplaceOrView no_view_metadata;  // rows need no autograd, and their base can be released
  int64_t row = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    for (size_t j = 0; j < outputs.size(); ++j)
      results[i].outputs.push_back(part_of(outputs[j], together, j, padding, i, row, requests[i].rows));
    row += requests[i].rows;
    requests[i].times.inputs_ready = ready;
    requests[i].times.computed = computed;
  }
  outputs.clear();
  // From here on, nothing throws, so each request is answered once. A client that has its answer sees the execution in
  // the statistics.
  statistics.add_execution(together.rows, ready - start, computed - ready, Clock::now() - computed);
  for (size_t i = 0; i < requests.size(); ++i) answer_request(requests[i], std::move(results[i]), statistics);
}

}  // namespace

void execute_batch(const RunModel& run, std::vector<PendingRequest>& requests, bool batched,
                   ModelStatistics& statistics, const Padding* padding) {
  try {
    return run_together(run, requests, batched, statistics, padding);
  } catch (...) {
    if (requests.size() == 1)
      return answer_request(requests[0], {.error = model_error(std::current_exception())}, statistics);
  }
  for (PendingRequest& request : requests) {
    try {
      run_together(run, {&request, 1}, batched, statistics, padding);
    } catch (...) {
      answer_request(request, {.error = model_error(std::current_exception())}, statistics);
    }
  }
}

RequestError model_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const RequestError& error) {
    return error;
  } catch (const c10::ValueError& error) {
    // The contract of back ends: the sizes of the inputs do not fit the model.
    return {status_bad_request, user_message(error)};
  } catch (const std::bad_alloc&) {
    return {status_internal, "the model ran out of memory."};
  } catch (const std::exception& error) {
    return {status_internal, "the model failed: " + user_message(error)};
  } catch (...) {
    return {status_internal, "the model failed with an unknown exception."};
  }
}

void answer_request(PendingRequest& request, InferenceResult result, ModelStatistics& statistics) {
  request.times.done = Clock::now();
  if (result.error)
    statistics.add_failure(result.error->status() == status_bad_request ? FailureReason::other : FailureReason::backend,
                           request.times.done - request.times.received);
  else
    statistics.add_success(request.times, request.rows);
  result.times = request.times;
  request.inputs.clear();
  request.done(std::move(result));
}

}  // namespace bellows::serve
