#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bellows/data/formats/shard_files.h"
#include "bellows/data/formats/unpacked_files.h"
#include "bellows/io/archives/tar_index.h"

namespace bellows::data {

/// Tar archives, plain or compressed, local or remote, with an index of each.
///
/// An index is made by walking over the headers. That of an archive that is remote, compressed or larger than 64 MiB is
/// kept in the cache's folder and used while size and time (or ETag) of the archive stay as they are; DALI's index
/// beside a local archive (`train-000.idx`) is used where it leaves nothing out. Either is checked again, against the
/// header in front of it, at each read of a member; one that does not fit is not used, and a line of the log says so.
/// Threads: safe, index() for different shards
class TarShards {
 public:
  /// Throws: c10::ValueError – no names
  explicit TarShards(std::vector<std::string> names);

  const ShardFiles& files() const { return files_; }
  /// The index of a shard. Call it once for each before view().
  /// Throws: c10::ValueError – the shard is missing, corrupt, too large; as ShardFiles::map
  io::TarIndex index(size_t shard);

  /// A shard's bytes, and what keeps them.
  struct View {
    io::ByteSpan bytes;
    std::shared_ptr<const void> owner;
  };
  /// Throws: c10::ValueError – it was cut or replaced since its index was made (the shard is not named: who reads a sample
  ///         does that); as ShardFiles::map
  View view(size_t shard) const;
  /// The file that the index came from: members are held against it (io::tar_member_data). "": it was made by this process.
  const std::string& index_path(size_t shard) const { return index_paths_[shard]; }

 private:
  bool read_kept(const std::string& path, size_t shard, const std::string& version, io::TarIndex& index) const;
  bool read_dali(const std::string& path, size_t shard, io::TarIndex& index) const;
  void keep(size_t shard, const io::TarIndex& index) const;
  std::string kept_path(size_t shard) const;
  View open_view(size_t shard) const;

  ShardFiles files_;
  mutable UnpackedFiles unpacked_;
  std::vector<uint64_t> archive_bytes_;
  std::vector<std::string> index_paths_;
};

}  // namespace bellows::data
