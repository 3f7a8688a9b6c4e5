#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "bellows/nn/loss.h"

/// What the losses ask of their arguments; `function` names the loss in messages.
namespace bellows::nn::loss {

/// "Float [2, 3]", for messages.
std::string describe(const at::Tensor& tensor);

/// A defined tensor of a dtype that the kernels compute with: Float, Double, BFloat16 or Half.
bool has_kernels(const at::Tensor& tensor);

/// Throws: c10::ValueError – outside [0, 1] or NaN
void check_smoothing(const char* function, double smoothing);
/// Throws: c10::ValueError – below 0, infinite or NaN
void check_not_negative(const char* function, const char* name, double value);

/// The logits, bf16 and fp16 as fp32. Throws: c10::ValueError – not floating-point, or fewer dims than min_dim
at::Tensor logits_of(const char* function, const at::Tensor& logits, int64_t min_dim = 0);

/// Are these class indices [N, …] for logits [N, C, …], and not a target as large as the logits?
bool is_class_indices(const at::Tensor& target, const at::Tensor& logits);
/// Throws: c10::ValueError – not int64 [N, …] for logits [N, C, …], or [] for [C]; another device
void check_class_target(const char* function, const at::Tensor& target, const at::Tensor& logits);
/// The same where classes are the last dim: int64 [*] for [*, C].
void check_last_class_target(const char* function, const at::Tensor& target, const at::Tensor& logits);
/// Throws: c10::ValueError – another shape or device than the logits
void check_dense_target(const char* function, const at::Tensor& target, const at::Tensor& logits);
/// Throws: c10::ValueError – defined, but does not broadcast to the logits, or on another device
void check_broadcasts(const char* function, const char* name, const at::Tensor& weight, const at::Tensor& logits);
/// The weight of each class in the logits' dtype, or undefined. Throws: c10::ValueError – not [C] floats on the device
at::Tensor class_weight(const char* function, const at::Tensor& weight, const at::Tensor& logits);

/// For libtorch's operators: none when undefined, otherwise in the logits' dtype.
std::optional<at::Tensor> maybe(const at::Tensor& tensor, const at::Tensor& logits);
int64_t to_aten(Reduction reduction);

}  // namespace bellows::nn::loss
