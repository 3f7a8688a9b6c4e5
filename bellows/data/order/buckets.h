#pragma once

#include "bellows/data/order/order.h"

#include <vector>

namespace bellows::data {

struct Buckets {
  /// Number of consecutive samples with similar lengths; ideally the batch size of all ranks together.
  int64_t together = 256;
  int64_t window = 25600;  ///< number of samples of the shuffled sequence that are sorted by length together
};

/// Returns a shuffled order in which consecutive samples have similar lengths, so that batches need little padding. A
/// random permutation of the samples is divided into windows. Each window is sorted by length and cut into runs of
/// `together` samples. The runs of a window are then shuffled.
///
/// Each sample occurs once per epoch. The sequence does not depend on batches, so you can resume with any batch size
/// and any number of ranks.
/// Params: lengths – one length per sample, for example from read_lengths(); not negative
/// Cost:   8 bytes per sample, plus 16 bytes per sample of the window while the sequence is computed
/// Throws: c10::ValueError if an option is below 1, if `window` is not a multiple of `together`, or if a length is
///         negative
/// Ref:    torchtext.data.BucketIterator; tf.data.Dataset.bucket_by_sequence_length
OrderPtr bucketed(const std::vector<int64_t>& lengths, Buckets options = {});

/// Returns the share of padding in all batches of an epoch if each batch is padded to its longest sample.
/// Params: sequence – result of Order::positions
///         lengths – one length per sample of the source
/// Throws: c10::ValueError if batch_size is below 1 or if a position has no length
double padding_share(const Positions& sequence, const std::vector<int64_t>& lengths, int64_t batch_size);

}  // namespace bellows::data
