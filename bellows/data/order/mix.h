#pragma once

#include "bellows/data/order/order.h"

#include <vector>

namespace bellows::data {

/// Concatenates datasets. A sample's id is its position in the concatenation.
///
/// For a mix with fixed proportions: `Dataset(concat({a, b})).order(mixed({a->size(), b->size()}, {3, 1}))`.
/// Throws: c10::ValueError if there are no sources or if one is null
SourcePtr concat(std::vector<SourcePtr> sources);

/// When an epoch of a mix ends.
enum class MixEnd {
  first,  ///< when the first dataset is used up
  last    ///< when all datasets are used up; the smaller ones repeat
};

/// Takes samples from several datasets in fixed proportions. In every prefix of an epoch, each dataset's number of
/// samples is within 1 of its share. Each dataset is shuffled again after each pass. The passes continue across epochs,
/// so no sample of a large dataset is missed.
/// Params: sizes – of the datasets that concat joined, in the same order
///         weights – relative number of samples from each dataset
/// Cost:   8 bytes per sample while the sequence is computed, 4 afterwards; the time per sample is proportional to the
///         number of datasets
/// Throws: c10::ValueError if there are no datasets, if `sizes` and `weights` have different lengths, if a dataset is
///         empty, or if a weight is not positive and finite; with MixEnd::last, if the epoch would have more than 2^33
///         samples
/// Ref:    Tijdeman, The chairman assignment problem (1980), for the choice of the next dataset
OrderPtr mixed(std::vector<int64_t> sizes, const std::vector<double>& weights, MixEnd end = MixEnd::first);

}  // namespace bellows::data
