#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace bellows::data {

/// Which of several files a sample is in: samples count through all of them. Files may be empty.
class FileStarts {
 public:
  /// The next file begins with this sample.
  void add(int64_t first) { first_.push_back(first); }
  size_t file_of(int64_t sample) const {
    return static_cast<size_t>(std::ranges::upper_bound(first_, sample) - first_.begin()) - 1;
  }
  int64_t first(size_t file) const { return first_[file]; }
  /// What Source::block_starts() wants: files without samples begin no block.
  /// Params: size – samples in all
  std::vector<int64_t> block_starts(int64_t size) const {
    std::vector<int64_t> starts = first_;
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    if (!starts.empty() && starts.back() == size) starts.pop_back();
    return starts;
  }

 private:
  std::vector<int64_t> first_;
};

/// Where the samples of several files begin: 8 bytes each.
class SampleOffsets {
 public:
  void add_file() { files_.add(size()); }
  /// A sample of the file that was added last.
  void add(uint64_t offset) { offsets_.push_back(offset); }
  void shrink_to_fit() { offsets_.shrink_to_fit(); }

  int64_t size() const { return static_cast<int64_t>(offsets_.size()); }
  size_t file_of(int64_t sample) const { return files_.file_of(sample); }
  uint64_t operator[](int64_t sample) const { return offsets_[static_cast<size_t>(sample)]; }
  /// Where the sample behind it begins; UINT64_MAX for the last one of a file.
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
