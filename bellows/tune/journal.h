#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bellows::tune {

/// An append-only file with one JSON value per line and a checksum in each line. A line is written with one system
/// call. If the process is killed during the call, the file ends with an incomplete line, which the next process
/// removes.
/// Format:  {"crc32":"1a2b3c4d","entry":JSON}, where the checksum is that of the bytes of JSON
/// Threads: not thread-safe
class Journal {
 public:
  /// Opens or creates the file and reads its entries.
  /// Throws: c10::ValueError if a complete line is damaged (the message has its number). c10::Error if the file cannot
  ///         be read or written
  explicit Journal(std::string path);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// The entries that were in the file when it was opened.
  const std::vector<std::string>& entries() const { return entries_; }
  /// Appends an entry.
  /// Params: entry   – JSON without line breaks
  ///         durable – wait until the entry is on disk
  /// Throws: c10::Error if writing fails, for example because the disk is full. The entry is then not in the file
  void append(std::string_view entry, bool durable);

 private:
  void read();

  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;  ///< bytes of complete lines
  std::vector<std::string> entries_;
};

}  // namespace bellows::tune
