#pragma once

#include <string>
#include <vector>

#include "bellows/data/sink.h"
#include "bellows/data/source.h"
#include "bellows/io/records/pack.h"

namespace bellows::data {

/// Opens packs (docs/formats.md). Reading does not copy samples. block_starts() returns the starts of the packs'
/// blocks.
/// Params: files – paths and URLs, in order
/// Cost:   opening reads and checks the index of each file, and maps local files. The indexes of remote files stay in
///         memory
/// Throws: c10::ValueError if there are no files, or if a file is missing or damaged (the message names the path and
///         the byte offset). read() throws c10::ValueError if the sample's block is damaged or its file was truncated
SourcePtr open_pack(const std::vector<std::string>& files, io::PackVerify verify = io::PackVerify::first_use);

/// Writes samples to one pack without changing their names, keys, bytes, types and shapes. The id of a sample becomes
/// its position in the new file.
class PackSink final : public Sink {
 public:
  /// Throws: exceptions of io::PackWriter's constructor
  explicit PackSink(const std::string& path, io::PackWriterOptions options = {});

  void write(const Sample& sample) override;
  void close() override { writer_.close(); }
  // Progress (see io::PackWriter).
  int64_t size() const { return writer_.size(); }
  uint64_t bytes() const { return writer_.bytes(); }

 private:
  io::PackWriter writer_;
  std::vector<io::PackValue> values_;
};

std::unique_ptr<Sink> pack_sink(const std::string& path, io::PackWriterOptions options = {});

}  // namespace bellows::data
