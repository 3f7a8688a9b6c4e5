#pragma once

// The parts of convert(): where files go, writing, verifying.

#include "bellows/data/convert/convert.h"
#include "bellows/data/convert/convert_state_impl.h"

namespace bellows::data {

/// A sample on its way from the source to the sink, and what it points into.
struct ConvertSlot {
  Sample sample, read_back;
  Recoder::Work work;
};

/// Where the files of a conversion go.
class ConvertPlaces {
 public:
  ConvertPlaces(const OutputFormat& format, std::string destination, const std::string& split);

  /// The destination is a folder of shards.
  bool sharded() const { return sharded_; }
  const std::string& destination() const { return destination_; }
  std::string state_file() const;
  /// dataset.json of a folder of shards.
  std::string description() const { return destination_ + "/dataset.json"; }
  const std::string& split() const { return stem_; }
  /// "train-000003.tar"; without shards, the destination itself.
  std::string shard_name(size_t shard) const;
  std::string path(const std::string& name) const { return sharded_ ? destination_ + "/" + name : destination_; }
  /// Throws: c10::ValueError – something is there, no state file, and no folder of shards without this split
  void check_free() const;
  void make_folder() const;
  /// Removes what a killed process was about to write.
  /// Params: shard – the one that it was at
  void remove_leftovers(size_t shard) const;

 private:
  std::string destination_, stem_, suffix_;
  bool sharded_;
};

/// Writes what is missing. False: it was stopped.
/// Params: kept – counts samples that an interrupted run left
bool write_shards(const Source& source, const OutputFormat& format, const ConvertPlaces& places,
                  const ConvertOptions& options, int64_t threads, ConvertState& state, ConvertResult& result);

/// Reads everything back. Returns how many samples were compared with the source. Throws: as convert
int64_t verify_shards(const Source& source, const OutputFormat& format, const std::vector<std::string>& files,
                      const ConvertOptions& options, int64_t threads, const std::vector<FinishedShard>& shards);

/// Calls `visit(i)` for up to `most` of 0 … n - 1, evenly spread, the first and the last among them.
template <class Visit>
void for_spread(int64_t n, int64_t most, const Visit& visit) {
  const int64_t count = n < most ? n : most;
  for (int64_t k = 0; k < count; ++k) visit(count == n ? k : k * (n - 1) / (count - 1));
}

}  // namespace bellows::data
