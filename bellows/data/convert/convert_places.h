#pragma once

#include <string>
#include <vector>

#include "bellows/data/convert/convert_state.h"
#include "bellows/data/convert/output_format.h"

namespace bellows::data {

/// Where the files of a conversion go: first into a folder of their own, and to their places once they are verified.
class ConvertPlaces {
 public:
  ConvertPlaces(const OutputFormat& format, std::string destination, const std::string& split);

  /// The destination is a folder of shards.
  bool sharded() const { return sharded_; }
  const std::string& destination() const { return destination_; }
  /// The folder that the destination is in, or that its shards will be in.
  std::string folder() const;
  /// Where everything waits: `DST.packing`, of a folder of shards `DST/.packing`.
  const std::string& staging() const { return staging_; }
  std::string state_file() const { return staging_ + "/packing.json"; }
  /// dataset.json of a folder of shards.
  std::string description() const { return destination_ + "/dataset.json"; }
  const std::string& split() const { return stem_; }
  /// "train-000003.tar"; without shards, the destination's own.
  std::string shard_name(size_t shard) const;
  std::string staged(const std::string& name) const { return staging_ + "/" + name; }
  std::string path(const std::string& name) const { return sharded_ ? destination_ + "/" + name : destination_; }
  /// Throws: c10::ValueError – something is there, no unfinished conversion, and no folder of shards without this split, or
  ///         one with files of the names that its shards would have
  void check_free() const;
  void make_staging() const;
  /// Removes what a killed process was about to write.
  void remove_leftovers(const std::vector<FinishedShard>& shards) const;
  /// Whether there is something that another call can go on with, beside finished shards: whole pages of a pack.
  bool has_pages(size_t shard) const;
  /// Throws: c10::Error – a name was taken meanwhile, or cannot be written to
  void put_in_place() const;
  void remove_staging() const;

 private:
  /// "train-000003.tar", with any number.
  bool is_shard_name(const std::string& name) const;

  std::string destination_, staging_, stem_, suffix_;
  bool sharded_;
};

}  // namespace bellows::data
