#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bellows/serve/model_config.h"

namespace bellows::serve {

/// Pads the inputs of requests to one length, so that they form a batch, and cuts the outputs back to the length of each
/// request.
///
/// The padded tensors are those inputs and outputs whose size varies on the axis. All padded inputs of a request must
/// have the same length. Otherwise, the request is not padded, and is combined only with requests of equal sizes.
/// Threads: thread-safe
class Padding {
 public:
  /// Params: inputs, outputs – of the model, without the batch axis
  /// Throws: c10::ValueError if no input varies on the axis, or if a pad value names an unknown input
  Padding(const PadOptions& options, std::span<const TensorSpec> inputs, std::span<const TensorSpec> outputs);

  /// Returns the common length of a request's padded inputs, or nothing if they differ.
  std::optional<int64_t> length(std::span<const at::Tensor> inputs) const;
  /// Returns the length to which a batch is padded: the smallest bucket that is not shorter than its longest request, or
  /// the length of this request if there is no such bucket.
  int64_t padded_length(int64_t longest) const;
  /// Returns whether two requests may form a batch. With buckets, they must need the same one.
  bool can_join(std::span<const at::Tensor> first, std::span<const at::Tensor> other) const;

  bool pads_input(size_t index) const { return values_[index].has_value(); }
  bool cuts_output(size_t index) const { return index < outputs_.size() && outputs_[index]; }
  /// Returns a tensor of pad values with the sizes of `input`, but with other numbers of rows and another length.
  at::Tensor padding_for(size_t index, const at::Tensor& input, int64_t rows, int64_t length) const;
  int64_t axis() const { return axis_; }

 private:
  int64_t axis_;
  std::vector<int64_t> buckets_;
  std::vector<std::optional<double>> values_{};  ///< of each input that is padded
  std::vector<bool> outputs_{};                  ///< whether the output is cut
};

}  // namespace bellows::serve
