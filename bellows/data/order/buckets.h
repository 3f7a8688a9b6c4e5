#pragma once

#include "bellows/data/order/order.h"

#include <vector>

namespace bellows::data {

struct Buckets {
  int64_t together = 256;  ///< samples of similar length in a row; best the batch of all ranks together
  int64_t window = 25600;  ///< samples that are sorted by length at a time, out of a shuffled sequence
};

/// Shuffled, with samples of similar length next to each other, so that batches need little padding: windows of a
/// permutation are sorted by length, cut into stretches of `together`, and these shuffled. Each sample comes once an
/// epoch; the sequence knows of no batches, so any batch size and world size may go on with it.
/// Params: lengths – one a sample (labels.h), not negative
/// Cost:   8 bytes a sample, and 16 a sample of the window while it is made
/// Throws: c10::ValueError – an option below 1, `window` no multiple of `together`, a negative length
/// Ref:    torchtext.data.BucketIterator; tf.data.Dataset.bucket_by_sequence_length
OrderPtr bucketed(const std::vector<int64_t>& lengths, Buckets options = {});

/// The share of a batch's places that hold padding, over a whole epoch: each batch is padded to its longest sample.
/// Params: sequence – Order::positions
///         lengths – one a sample of the source
/// Throws: c10::ValueError – batch_size below 1, no length for a position
double padding_share(const Positions& sequence, const std::vector<int64_t>& lengths, int64_t batch_size);

}  // namespace bellows::data
