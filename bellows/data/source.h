#pragma once

#include "bellows/core/model.h"
#include "bellows/data/sample.h"

#include <memory>
#include <string>
#include <vector>

namespace bellows::data {

/// Where samples come from: random access by position.
/// Threads: read is called from several threads at once and has to be safe for that.
class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t size() const = 0;
  /// Fills `sample`, reusing its memory.
  /// Params: index – in [0, size())
  /// Throws: c10::ValueError – the sample cannot be read; names it, its file and byte offset
  virtual void read(int64_t index, Sample& sample) const = 0;
  /// Every Sample::id is below this: the size of the root source.
  virtual int64_t id_bound() const { return size(); }
  /// In words, for messages: "4 shards (data/digits/train-000.tar, …)".
  virtual std::string describe() const = 0;
  /// Announces that the sample will be read soon, so that its bytes are near then: a mapped file's pages, a remote
  /// shard in the cache. May wait as long as reading would: it is called from threads that have nothing else to do, for
  /// some of the samples.
  /// Returns:  false – there is nothing to be done ahead of reading
  /// Threads:  as read
  virtual bool prefetch(int64_t /*index*/) const { return false; }
  /// Samples lie there as they are: reading one again, at any time, gives the same bytes and changes nothing. False
  /// where they may be made by the user's own code, with random numbers or at a cost.
  virtual bool stored() const { return false; }
  /// Positions at which a stretch begins that is cheap to read at one time (a shard, a page), ascending, the first 0.
  /// Empty: it is all one stretch. Page-wise shuffling keeps to them.
  virtual std::vector<int64_t> block_starts() const { return {}; }

  Sample read(int64_t index) const {
    Sample sample;
    read(index, sample);
    return sample;
  }
};

using SourcePtr = std::shared_ptr<const Source>;

/// Rows of tensors in memory; row i of each is sample i.
/// Params: tensors – by name ("image", "label", …), equal first dimension. A uint8 "image" [N, H, W, C] goes through
///         the image transforms as a decoded picture does; everything else is stacked as it is.
/// Cost:   keeps references; copies only what is not contiguous or not on the CPU
/// Throws: c10::ValueError – none, or lengths differ
SourcePtr from_tensors(NamedTensors tensors);

/// The samples of `source` at `indices`, in that order. Ids stay those of `source`.
/// Throws: c10::ValueError – an index out of range
SourcePtr subset(SourcePtr source, std::vector<int64_t> indices);

/// Samples [begin, end) of `source`.
/// Throws: c10::ValueError – not 0 ≤ begin ≤ end ≤ size
SourcePtr subrange(SourcePtr source, int64_t begin, int64_t end);

}  // namespace bellows::data
