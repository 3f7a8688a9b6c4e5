#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace bellows::data {

/// A shard that is whole, and waits in the conversion's own folder.
struct FinishedShard {
  std::string name;  ///< of its file
  int64_t samples = 0;
  int64_t kept = 0;     ///< the leading ones, which an interrupted run left: their digest is not known
  int64_t unnamed = 0;  ///< those without a key
  uint64_t digest = 0;  ///< sum of sample_digest over the others
};

/// What an unfinished conversion has done, in a small file that is replaced after each shard.
class ConvertState {
 public:
  using Identity = std::map<std::string, std::string>;

  /// Goes on with what `path` says, or begins it.
  /// Params: identity – what has to be the same when it goes on: the source, options
  /// Throws: c10::ValueError – the file is damaged, or of a conversion of something else; says what
  ConvertState(std::string path, Identity identity);

  const std::vector<FinishedShard>& shards() const { return shards_; }
  void add(FinishedShard shard);
  /// How many samples were compared with the source when all was read back; nothing before that.
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
