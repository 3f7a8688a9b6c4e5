#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace bellows::data {

// Which samples of an unlabelled pool are worth a label. The scores are [N]; greater is more worth.

/// 1 - the greatest probability.
/// Shapes: probabilities [N, C]; so in the two that follow
at::Tensor least_confidence(const at::Tensor& probabilities);
/// 1 - the distance between the two greatest probabilities.
at::Tensor small_margin(const at::Tensor& probabilities);
/// In nats.
at::Tensor entropy(const at::Tensor& probabilities);

/// What the label would say about the model: entropy of the mean of several stochastic passes minus the mean of their
/// entropies. In nats.
/// Shapes: probabilities [T, N, C], one pass with dropout on for each of T ≥ 2
/// Ref:    arXiv:1112.5745, arXiv:1703.02910 (BALD)
at::Tensor bald(const at::Tensor& probabilities);

/// Greedy core-set: again and again the sample that lies farthest from all those chosen or labelled. No sample of the
/// pool then is farther from a chosen one than twice what the best choice would allow.
/// Shapes:  features [N, D]
/// Params:  labelled – rows that are there already; none: begins with the row farthest from the mean
/// Returns: `count` rows, in the order in which they were chosen
/// Cost:    (labelled + count) · N · D multiplications; N numbers of memory
/// Throws:  c10::ValueError – more wanted than are left, rows out of range
/// Ref:     arXiv:1708.00489
std::vector<int64_t> k_center(const at::Tensor& features, const std::vector<int64_t>& labelled, int64_t count);

}  // namespace bellows::data
