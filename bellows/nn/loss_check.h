#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "bellows/nn/loss.h"

/// Argument checks of the losses. `function` is the name of the loss for messages.
namespace bellows::nn::loss {

/// Returns the dtype and shape for messages, such as "Float [2, 3]".
std::string describe(const at::Tensor& tensor);

/// Returns whether the tensor is defined and has a dtype with kernels: Float, Double, BFloat16 or Half.
bool has_kernels(const at::Tensor& tensor);

/// Throws: c10::ValueError if `smoothing` is outside [0, 1] or NaN
void check_smoothing(const char* function, double smoothing);
/// Throws: c10::ValueError if `value` is negative, infinite or NaN
void check_not_negative(const char* function, const char* name, double value);

/// Returns the logits. Logits in bf16 and fp16 are cast to fp32.
/// Throws: c10::ValueError if `logits` is not floating-point or has fewer than min_dim dims
at::Tensor logits_of(const char* function, const at::Tensor& logits, int64_t min_dim = 0);

/// Returns whether `target` contains class indices [N, …] for logits [N, C, …]. Otherwise, it is a target of the
/// logits' shape.
bool is_class_indices(const at::Tensor& target, const at::Tensor& logits);
/// Throws: c10::ValueError if `target` is on a different device, or is not int64 [N, …] for logits [N, C, …] or int64
///         [] for logits [C]
void check_class_target(const char* function, const at::Tensor& target, const at::Tensor& logits);
/// The same check for logits whose last dim contains the classes: int64 [*] for [*, C].
void check_last_class_target(const char* function, const at::Tensor& target, const at::Tensor& logits);
/// Throws: c10::ValueError if the shape or device of `target` differs from that of the logits
void check_dense_target(const char* function, const at::Tensor& target, const at::Tensor& logits);
/// Throws: c10::ValueError if `weight` is defined but does not broadcast to the logits or is on a different device
void check_broadcasts(const char* function, const char* name, const at::Tensor& weight, const at::Tensor& logits);
/// Returns the class weights in the logits' dtype, or an undefined tensor if `weight` is undefined.
/// Throws: c10::ValueError if `weight` is not floating-point [C] on the logits' device
at::Tensor class_weight(const char* function, const at::Tensor& weight, const at::Tensor& logits);

/// Converts a tensor to an optional argument of libtorch's operators: empty if undefined, otherwise in the logits'
/// dtype.
std::optional<at::Tensor> maybe(const at::Tensor& tensor, const at::Tensor& logits);
int64_t to_aten(Reduction reduction);

}  // namespace bellows::nn::loss
