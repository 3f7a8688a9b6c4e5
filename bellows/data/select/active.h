#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace bellows::data {

// Scores that rank the samples of an unlabeled pool for labeling. A score is a tensor [N]. A greater score means that
// the label of the sample is more useful.

/// Returns 1 minus the greatest probability.
/// Shapes: probabilities [N, C] with C ≥ 2, also in the next two functions
/// Throws: c10::ValueError if `probabilities` has a different shape or is not floating-point, also in the next two
///         functions
at::Tensor least_confidence(const at::Tensor& probabilities);
/// Returns 1 minus the difference between the two greatest probabilities.
at::Tensor small_margin(const at::Tensor& probabilities);
/// Returns the entropy of the probabilities in nats.
at::Tensor entropy(const at::Tensor& probabilities);

/// Returns the mutual information between the label and the model in nats. It is computed from several stochastic
/// forward passes, as the entropy of the mean probabilities minus the mean entropy of the passes.
/// Shapes: probabilities [T, N, C] from T ≥ 2 passes with dropout enabled; C ≥ 2
/// Throws: c10::ValueError if `probabilities` has a different shape or is not floating-point
/// Ref:    arXiv:1112.5745, arXiv:1703.02910 (BALD)
at::Tensor bald(const at::Tensor& probabilities);

/// Selects a core set with a greedy algorithm. Each step adds the sample that is farthest from all chosen or labeled
/// samples. The largest distance from a sample of the pool to its nearest chosen sample is then at most twice the
/// optimum.
/// Shapes:  features [N, D]
/// Params:  labelled – rows that already have labels; if empty, the row farthest from the mean is chosen first
/// Returns: `count` rows, in the order in which they were chosen
/// Cost:    (labelled + count) · N · D multiplications; memory for N numbers
/// Throws:  c10::ValueError if `features` is not [N, D], if `count` is negative or exceeds the number of remaining
///          rows, or if a row is out of range
/// Ref:     arXiv:1708.00489
std::vector<int64_t> k_center(const at::Tensor& features, const std::vector<int64_t>& labelled, int64_t count);

}  // namespace bellows::data
