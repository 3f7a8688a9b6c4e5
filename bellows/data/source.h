#pragma once

#include "bellows/core/model.h"
#include "bellows/data/sample.h"

#include <memory>
#include <string>
#include <vector>

namespace bellows::data {

/// Random access to samples by position.
/// Threads: read is called from several threads at once and must be thread-safe
class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t size() const = 0;
  /// Fills `sample`, reusing its memory.
  /// Params: index – in [0, size())
  /// Throws: c10::ValueError if the sample cannot be read; the message names the sample, its file and the byte offset
  virtual void read(int64_t index, Sample& sample) const = 0;
  /// Upper bound of every Sample::id (exclusive): the size of the root source.
  virtual int64_t id_bound() const { return size(); }
  /// A short description for messages: "4 shards (data/digits/train-000.tar, …)".
  virtual std::string describe() const = 0;
  /// Prepares for a read of this sample: loads the pages of a mapped file, or fetches a remote shard into the cache. It
  /// may block as long as a read. It is called from dedicated threads, and only for some of the samples.
  /// Returns: false if prefetching has no effect
  /// Threads: same as read
  virtual bool prefetch(int64_t /*index*/) const { return false; }
  /// True if the samples are stored: reading a sample again, at any time, gives the same bytes and has no side effects.
  /// False if user code may generate them, with random numbers or at a cost.
  virtual bool stored() const { return false; }
  /// Returns the first positions of stretches that are cheap to read together (a shard, a page), ascending, starting
  /// with 0. Empty: the source is one stretch. Page-wise shuffling uses them.
  virtual std::vector<int64_t> block_starts() const { return {}; }

  Sample read(int64_t index) const {
    Sample sample;
    read(index, sample);
    return sample;
  }
};

using SourcePtr = std::shared_ptr<const Source>;

/// A source over tensors in memory: row i of each tensor is sample i.
/// Params: tensors – by name ("image", "label", …), with equal first dimension. A uint8 "image" [N, H, W, C] goes
///         through the image transforms like a decoded image; all other tensors are stacked unchanged.
/// Cost:   keeps references; copies only tensors that are not contiguous or not on the CPU
/// Throws: c10::ValueError if there are no tensors or their lengths differ
SourcePtr from_tensors(NamedTensors tensors);

/// The samples of `source` at `indices`, in that order. Ids stay those of `source`.
/// Throws: c10::ValueError if an index is out of range
SourcePtr subset(SourcePtr source, std::vector<int64_t> indices);

/// Samples [begin, end) of `source`.
/// Throws: c10::ValueError unless 0 ≤ begin ≤ end ≤ size
SourcePtr subrange(SourcePtr source, int64_t begin, int64_t end);

}  // namespace bellows::data
