#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace bellows::data {

// Scores that rank the samples of an unlabeled pool for labeling. They are [N]; a greater score means a more useful
// label.

/// 1 - the greatest probability.
/// Shapes: probabilities [N, C]; also in the next two functions
at::Tensor least_confidence(const at::Tensor& probabilities);
/// 1 - the difference of the two greatest probabilities.
at::Tensor small_margin(const at::Tensor& probabilities);
/// The entropy of the probabilities, in nats.
at::Tensor entropy(const at::Tensor& probabilities);

/// The mutual information between the label and the model: the entropy of the mean of several stochastic passes minus
/// the mean of their entropies. In nats.
/// Shapes: probabilities [T, N, C], from T ≥ 2 passes with dropout on
/// Ref:    arXiv:1112.5745, arXiv:1703.02910 (BALD)
at::Tensor bald(const at::Tensor& probabilities);

/// Greedy core-set selection: repeatedly takes the sample that is farthest from all chosen or labeled samples. The
/// largest distance from a sample of the pool to a chosen one is then at most twice the optimum.
/// Shapes:  features [N, D]
/// Params:  labelled – rows that already have labels; empty: starts with the row farthest from the mean
/// Returns: `count` rows, in the order in which they were chosen
/// Cost:    (labelled + count) · N · D multiplications; memory for N numbers
/// Throws:  c10::ValueError if `count` exceeds the remaining rows or if a row is out of range
/// Ref:     arXiv:1708.00489
std::vector<int64_t> k_center(const at::Tensor& features, const std::vector<int64_t>& labelled, int64_t count);

}  // namespace bellows::data
