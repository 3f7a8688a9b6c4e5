#pragma once

#include "bellows/core/model.h"
#include "bellows/data/sample.h"

#include <memory>
#include <string>
#include <vector>

namespace bellows::data {

/// Random access to samples by position.
/// Threads: several threads call read() at the same time, so it must be thread-safe
class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t size() const = 0;
  /// Reads a sample into `sample` and reuses the memory of `sample`.
  /// Params: index – in [0, size())
  /// Throws: c10::ValueError if the sample cannot be read; the message names the sample, its file and the byte offset
  virtual void read(int64_t index, Sample& sample) const = 0;
  /// Returns the exclusive upper bound of all values of Sample::id. This is the size of the root source, from which
  /// subsets and other derived sources take their samples.
  virtual int64_t id_bound() const { return size(); }
  /// Returns a short description for messages, such as "4 shards (data/digits/train-000.tar, …)".
  virtual std::string describe() const = 0;
  /// Prepares a later read of this sample: loads the pages of a mapped file, or downloads a remote shard into the
  /// cache. The call may block for as long as read() does. Dedicated threads call it, and only for some of the samples.
  /// Returns: false if prefetching has no effect
  /// Threads: same as read()
  virtual bool prefetch(int64_t /*index*/) const { return false; }
  /// Returns true if the samples are stored. Reading a stored sample always returns the same bytes and has no side
  /// effects. Returns false if user code may generate the samples, possibly at random or at high cost.
  virtual bool stored() const { return false; }
  /// Returns the first position of each block, in ascending order, starting with 0. A block is a range of samples that
  /// are cheap to read together, such as a shard or a page. Page-wise shuffling uses the blocks. If the result is
  /// empty, the whole source is one block.
  virtual std::vector<int64_t> block_starts() const { return {}; }

  Sample read(int64_t index) const {
    Sample sample;
    read(index, sample);
    return sample;
  }
};

using SourcePtr = std::shared_ptr<const Source>;

/// Returns a source over tensors in memory. Row i of each tensor belongs to sample i.
/// Params: tensors – tensors with their names ("image", "label", …) and equal first dimensions. A uint8 tensor "image"
///         [N, H, W, C] passes through the image transforms like a decoded image. All other tensors are stacked
///         unchanged
/// Cost:   keeps references to the tensors; copies only tensors that are not contiguous or not on the CPU
/// Throws: c10::ValueError if there are no tensors, if a tensor is undefined or a scalar, or if the first dimensions
///         differ
SourcePtr from_tensors(NamedTensors tensors);

/// Returns the samples of `source` at the positions `indices`, in that order. The samples keep their ids.
/// Throws: c10::ValueError if an index is out of range
SourcePtr subset(SourcePtr source, std::vector<int64_t> indices);

/// Returns samples [begin, end) of `source`. The samples keep their ids.
/// Throws: c10::ValueError unless 0 ≤ begin ≤ end ≤ size
SourcePtr subrange(SourcePtr source, int64_t begin, int64_t end);

}  // namespace bellows::data
