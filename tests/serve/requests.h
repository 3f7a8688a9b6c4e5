#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/serve/request_error.h"
#include "bellows/serve/request_queue.h"
#include "bellows/serve/v2_protocol.h"

namespace bellows::serve {

/// A model without a batch axis, with one input x and one output y of the same dtype.
inline ModelSignature one_input(c10::ScalarType dtype = c10::kFloat, std::vector<int64_t> dims = {-1}) {
  return {.name = "m",
          .version = "1",
          .inputs = {{.name = "x", .dtype = dtype, .dims = std::move(dims)}},
          .outputs = {{.name = "y", .dtype = dtype, .dims = {-1}}}};
}

/// A request that was received now.
inline PendingRequest request_of(std::vector<at::Tensor> inputs, std::function<void(InferenceResult)> done = {}) {
  const int64_t rows = inputs[0].size(0);
  return {.inputs = std::move(inputs), .rows = rows, .times = {.received = Clock::now()}, .done = std::move(done)};
}

/// Returns the message of the RequestError with this status that `action` throws, or "" if it throws none.
inline std::string error_of(int status, const std::function<void()>& action) {
  try {
    action();
  } catch (const RequestError& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    return error.what();
  }
  return "";
}

}  // namespace bellows::serve
