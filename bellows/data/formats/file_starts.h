#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace bellows::data {

/// Maps a sample to its file. Samples are numbered consecutively through all files. Files may be empty.
class FileStarts {
 public:
  /// Adds the next file, which starts with the sample `first`.
  void add(int64_t first) { first_.push_back(first); }
  size_t file_of(int64_t sample) const {
    return static_cast<size_t>(std::ranges::upper_bound(first_, sample) - first_.begin()) - 1;
  }
  int64_t first(size_t file) const { return first_[file]; }
  /// Returns the value for Source::block_starts(). Files without samples do not start a block.
  /// Params: size – total number of samples
  std::vector<int64_t> block_starts(int64_t size) const {
    std::vector<int64_t> starts = first_;
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    if (!starts.empty() && starts.back() == size) starts.pop_back();
    return starts;
  }

 private:
  std::vector<int64_t> first_;
};

/// Stores the byte offsets of the samples of several files, in 8 bytes per sample.
class SampleOffsets {
 public:
  void add_file() { files_.add(size()); }
  /// Adds a sample to the last file.
  void add(uint64_t offset) { offsets_.push_back(offset); }
  void shrink_to_fit() { offsets_.shrink_to_fit(); }

  int64_t size() const { return static_cast<int64_t>(offsets_.size()); }
  size_t file_of(int64_t sample) const { return files_.file_of(sample); }
  uint64_t operator[](int64_t sample) const { return offsets_[static_cast<size_t>(sample)]; }
  /// Returns the offset of the next sample in the same file, or UINT64_MAX for the last sample of a file.
  uint64_t next(int64_t sample) const {
    const bool last = sample + 1 == size() || file_of(sample + 1) != file_of(sample);
    return last ? UINT64_MAX : (*this)[sample + 1];
  }
  std::vector<int64_t> block_starts() const { return files_.block_starts(size()); }

 private:
  FileStarts files_;
  std::vector<uint64_t> offsets_;
};

}  // namespace bellows::data
