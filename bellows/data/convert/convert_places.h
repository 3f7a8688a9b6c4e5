#pragma once

#include <string>
#include <vector>

#include "bellows/data/convert/convert_state.h"
#include "bellows/data/convert/output_format.h"

namespace bellows::data {

/// The paths of a conversion's files. The files are written to a temporary folder and moved to their final paths after
/// verification.
class ConvertPlaces {
 public:
  ConvertPlaces(const OutputFormat& format, std::string destination, const std::string& split);

  /// Returns true if the destination is a folder of shards.
  bool sharded() const { return sharded_; }
  const std::string& destination() const { return destination_; }
  /// Returns the folder of the shards. Without shards, returns the parent folder of the destination.
  std::string folder() const;
  /// Returns the temporary folder: `DST.packing`, or `DST/.packing` for a folder of shards.
  const std::string& staging() const { return staging_; }
  std::string state_file() const { return staging_ + "/packing.json"; }
  /// Returns the path of the dataset.json in a folder of shards.
  std::string description() const { return destination_ + "/dataset.json"; }
  const std::string& split() const { return stem_; }
  /// Returns the file name of a shard, such as "train-000003.tar". Without shards, returns the file name of the
  /// destination.
  std::string shard_name(size_t shard) const;
  std::string staged(const std::string& name) const { return staging_ + "/" + name; }
  std::string path(const std::string& name) const { return sharded_ ? destination_ + "/" + name : destination_; }
  /// Checks that the conversion can write to the destination. This is the case if the destination does not exist, is an
  /// unfinished conversion, or is an empty folder for shards. If the folder already has shards, it must contain neither
  /// this split nor a file that is named like a shard of this split.
  /// Throws: c10::ValueError if the conversion cannot write to the destination
  void check_free() const;
  void make_staging() const;
  /// Removes incomplete files, which a killed process may have left. Keeps complete pages of a pack.
  void remove_leftovers(const std::vector<FinishedShard>& shards) const;
  /// Returns true if a partial file of `shard` contains complete pages of a pack. A later call can resume such a file.
  bool has_pages(size_t shard) const;
  /// Moves the files to their final paths.
  /// Throws: c10::Error if another process has created a final path, or if a move fails
  void put_in_place() const;
  void remove_staging() const;

 private:
  /// Returns true for a name like "train-000003.tar", with any number.
  bool is_shard_name(const std::string& name) const;

  std::string destination_, staging_, stem_, suffix_;
  bool sharded_;
};

}  // namespace bellows::data
