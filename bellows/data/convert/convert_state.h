#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace bellows::data {

/// A complete shard in the conversion's temporary folder.
struct FinishedShard {
  std::string name;  ///< of its file
  int64_t samples = 0;
  int64_t kept = 0;     ///< leading samples from an interrupted run; the digest does not cover them
  int64_t unnamed = 0;  ///< samples without a key
  uint64_t digest = 0;  ///< sum of sample_digest over the other samples
};

/// The progress of an unfinished conversion, in a small file that is replaced after each shard.
class ConvertState {
 public:
  using Identity = std::map<std::string, std::string>;

  /// Resumes from the file `path`, or creates it.
  /// Params: identity – must be equal when the conversion resumes: the source and the options
  /// Throws: c10::ValueError if the file is damaged or belongs to another conversion (the message names the difference)
  ConvertState(std::string path, Identity identity);

  const std::vector<FinishedShard>& shards() const { return shards_; }
  void add(FinishedShard shard);
  /// Number of samples that were compared with the source during verification; nothing before verification.
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
