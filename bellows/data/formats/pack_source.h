#pragma once

#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"
#include "bellows/io/records/pack.h"

namespace bellows::data {

/// Samples of packs (docs/formats.md), without copying. block_starts() returns the packs' blocks.
/// Params: files – paths, in order
/// Cost:   reads the files' indexes once, to check them, and maps local files; the indexes of remote files stay in
///         memory
/// Throws: c10::ValueError if there are no files, or if one is missing or damaged (the message names the path and the
///         byte offset). read() throws c10::ValueError if its block is damaged or its file was truncated
SourcePtr open_pack(const std::vector<std::string>& files, io::PackVerify verify = io::PackVerify::first_use);

/// Writes samples unchanged into one pack: names, keys, bytes, types and shapes. Ids are positions in the new file.
class PackSink final : public Sink {
 public:
  /// Throws: as io::PackWriter's constructor
  explicit PackSink(const std::string& path, io::PackWriterOptions options = {});

  void write(const Sample& sample) override;
  void close() override { writer_.close(); }
  // See io::PackWriter.
  int64_t size() const { return writer_.size(); }
  uint64_t bytes() const { return writer_.bytes(); }

 private:
  io::PackWriter writer_;
  std::vector<io::PackValue> values_;
};

std::unique_ptr<Sink> pack_sink(const std::string& path, io::PackWriterOptions options = {});

}  // namespace bellows::data
