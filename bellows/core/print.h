#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace bellows {

/// How to_text() writes a tensor. The defaults are those of torch.set_printoptions().
struct PrintOptions {
  int64_t precision = 4;  ///< number of digits after the decimal point, from 0 to 100
  int64_t threshold =
      1000;                ///< tensors with more elements are summarized: only the edges of each dimension are written
  int64_t edgeitems = 3;   ///< number of elements at each end of a dimension in a summary, at least 0
  int64_t linewidth = 80;  ///< number of characters after which a line is wrapped, at least 1
  /// True: scientific notation; false: no scientific notation. Empty: scientific notation if the largest absolute value
  /// is above 1e8 or more than 1000 times the smallest, or if the smallest is below 1e-4. Zeros do not count.
  std::optional<bool> sci_mode = {};
};

/// Returns the options of a profile of torch.set_printoptions(): "default", "short" (2 digits) or "full" (no summaries).
/// Throws: c10::ValueError if the profile is unknown (the message lists the profiles)
PrintOptions print_profile(std::string_view name);

/// Sets the options of the process. To change one option, copy print_options() first.
/// Throws:  c10::ValueError if an option is out of range
/// Threads: thread-safe
/// Ref:     torch.set_printoptions
void set_print_options(const PrintOptions& options);

/// Returns the options that set_print_options() set last.
/// Threads: thread-safe
PrintOptions print_options();

/// Returns the text that print(tensor) writes in Python: the values, and the dtype, the device, the shape of an empty
/// tensor and grad_fn, if they are not the default. An undefined tensor is "tensor(undefined)".
/// Cost:   copies the elements that are written to the CPU
/// Throws: c10::ValueError if the tensor is sparse, quantized or nested (convert it with to_dense(), dequantize() or
///         to_padded_tensor()); c10::ValueError if an option is out of range
/// Ref:    torch/_tensor_str.py
std::string to_text(const at::Tensor& tensor, const PrintOptions& options);
/// Like above, with print_options().
std::string to_text(const at::Tensor& tensor);

}  // namespace bellows
