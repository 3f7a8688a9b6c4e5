#pragma once

#include "bellows/data/order/order.h"

#include <vector>

namespace bellows::data {

/// Concatenates datasets. The id of a sample is its position in the concatenation.
///
/// Example of a mix with fixed proportions: `Dataset(concat({a, b})).order(mixed({a->size(), b->size()}, {3, 1}))`.
/// Throws: c10::ValueError if there are no sources or if a source is null
SourcePtr concat(std::vector<SourcePtr> sources);

/// Determines when an epoch of a mix ends.
enum class MixEnd {
  first,  ///< as soon as any dataset has been used completely
  last    ///< when all datasets have been used completely; the other datasets repeat until then
};

/// Returns an order that takes samples from several datasets in fixed proportions. In every prefix of an epoch, the
/// number of samples from a dataset differs from its exact share by at most 1. Each pass over a dataset has a new
/// random order. A pass continues in the next epoch, so all samples of a large dataset are used.
/// Params: sizes – sizes of the datasets that were passed to concat(), in the same order
///         weights – relative number of samples from each dataset
/// Cost:   8 bytes per sample while the sequence is computed, 4 bytes afterwards. The time per sample is proportional
///         to the number of datasets
/// Throws: c10::ValueError if there are no datasets, if `sizes` and `weights` have different lengths, or if a dataset
///         is empty; if a weight is not positive and finite; if the epoch would have more than 2^33 samples
/// Ref:    Tijdeman, The chairman assignment problem (1980), for the choice of the next dataset
OrderPtr mixed(std::vector<int64_t> sizes, const std::vector<double>& weights, MixEnd end = MixEnd::first);

}  // namespace bellows::data
