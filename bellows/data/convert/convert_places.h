#pragma once

#include <string>
#include <vector>

#include "bellows/data/convert/convert_state.h"
#include "bellows/data/convert/output_format.h"

namespace bellows::data {

/// The paths of a conversion's files: first in a temporary folder, then, after verification, at their final places.
class ConvertPlaces {
 public:
  ConvertPlaces(const OutputFormat& format, std::string destination, const std::string& split);

  /// True if the destination is a folder of shards.
  bool sharded() const { return sharded_; }
  const std::string& destination() const { return destination_; }
  /// The parent folder of the destination, or the folder of the shards.
  std::string folder() const;
  /// The temporary folder: `DST.packing`, or `DST/.packing` for a folder of shards.
  const std::string& staging() const { return staging_; }
  std::string state_file() const { return staging_ + "/packing.json"; }
  /// The path of the dataset.json in a folder of shards.
  std::string description() const { return destination_ + "/dataset.json"; }
  const std::string& split() const { return stem_; }
  /// "train-000003.tar"; without shards, the name of the destination.
  std::string shard_name(size_t shard) const;
  std::string staged(const std::string& name) const { return staging_ + "/" + name; }
  std::string path(const std::string& name) const { return sharded_ ? destination_ + "/" + name : destination_; }
  /// Throws: c10::ValueError if the destination exists and is neither an unfinished conversion nor an empty folder for
  ///         shards. A folder of shards is accepted if it has neither this split nor files with the names of this
  ///         split's shards
  void check_free() const;
  void make_staging() const;
  /// Removes files that a killed process left incomplete.
  void remove_leftovers(const std::vector<FinishedShard>& shards) const;
  /// True if `shard` has a partial file that another call can resume: complete pages of a pack.
  bool has_pages(size_t shard) const;
  /// Throws: c10::Error if a name was taken in the meantime or if writing fails
  void put_in_place() const;
  void remove_staging() const;

 private:
  /// True for "train-000003.tar", with any number.
  bool is_shard_name(const std::string& name) const;

  std::string destination_, staging_, stem_, suffix_;
  bool sharded_;
};

}  // namespace bellows::data
