#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace bellows::data {

/// A complete shard in the conversion's temporary folder.
struct FinishedShard {
  std::string name;  ///< file name of the shard
  int64_t samples = 0;
  int64_t kept = 0;     ///< number of leading samples that come from an interrupted run; `digest` does not cover them
  int64_t unnamed = 0;  ///< number of samples without a key
  uint64_t digest = 0;  ///< sum of sample_digest() over the samples that do not come from an interrupted run
};

/// The progress of an unfinished conversion. It is stored in a small file that is replaced after each shard.
class ConvertState {
 public:
  using Identity = std::map<std::string, std::string>;

  /// Loads the progress from the file `path`, or creates the file.
  /// Params: identity – describes the source and the options; a resumed conversion must have the same identity
  /// Throws: c10::ValueError if the file is damaged or belongs to a different conversion (the message names the
  ///         difference)
  ConvertState(std::string path, Identity identity);

  const std::vector<FinishedShard>& shards() const { return shards_; }
  void add(FinishedShard shard);
  /// Returns the number of samples that verification compared with the source, or nothing before verification.
  const std::optional<int64_t>& compared() const { return compared_; }
  void set_compared(int64_t samples);

 private:
  void load(const std::string& text);
  void save() const;

  std::string path_;
  Identity identity_;
  std::vector<FinishedShard> shards_;
  std::optional<int64_t> compared_;
};

}  // namespace bellows::data
