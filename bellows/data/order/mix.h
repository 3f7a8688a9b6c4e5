#pragma once

#include "bellows/data/order/order.h"

#include <vector>

namespace bellows::data {

/// Data sets one behind the other. An id is the position in the whole.
///
/// For a mix in which each has its share: `Dataset(concat({a, b})).order(mixed({a->size(), b->size()}, {3, 1}))`.
/// Throws: c10::ValueError – none, or null
SourcePtr concat(std::vector<SourcePtr> sources);

/// When an epoch of a mix ends.
enum class MixEnd {
  first,  ///< where the first data set is used up
  last    ///< where each was used up; the smaller ones come again
};

/// Data sets in fixed proportions: in every front part of an epoch, each one's number of samples is within 1 of its
/// share. Each is gone through in passes that are shuffled anew and go on from epoch to epoch, so that nothing of a
/// large one is missed.
/// Params: sizes – of the data sets that concat joined, in its order
///         weights – in proportion to how many samples each gives
/// Cost:   8 bytes a sample while it is made, 4 afterwards; each sample takes time in proportion to the data sets
/// Throws: c10::ValueError – none, lengths differ, an empty data set, a weight not positive or not finite, a last data
///         set so rare that the epoch would have over 2^33 samples
/// Ref:    Tijdeman, The chairman assignment problem (1980): which one is next
OrderPtr mixed(std::vector<int64_t> sizes, const std::vector<double>& weights, MixEnd end = MixEnd::first);

}  // namespace bellows::data
