#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"
#include "bellows/system/file.h"

namespace bellows::export_detail {

/// Bytes in an artifact.
struct ArtifactSection {
  std::string kind{};  ///< such as "weight"
  std::string name{};  ///< unique among the sections of a kind
  io::ByteSpan bytes{};
  std::string checksum{};  ///< xxh3_64 of the bytes; write_artifact() computes it
};

/// Writes an artifact: one file with a text, and sections that can be mapped into memory. All numbers are
/// little-endian.
///
///     8 bytes   "BLWPROGR"
///     u64       version of the layout, 1
///     u64       size of the file
///     u64       size of the header
///     16 bytes  xxh3_64 of the header, as hexadecimal digits
///     header    JSON: {"sections": [[kind, name, offset, size, xxh3_64], …], "content": …}
///     sections  each one starts at a multiple of 64 bytes
///
/// The file receives its name only when it is complete.
/// Params: content – JSON
/// Throws: c10::ValueError if two sections have the same kind and name. c10::Error if the file cannot be written
void write_artifact(const std::string& path, const std::string& content, std::vector<ArtifactSection> sections);

/// An open artifact. The constructor checks the header. The bytes of a section are checked when they are requested.
/// Threads: thread-safe
class ArtifactFile {
 public:
  /// Throws: c10::ValueError if the file is missing, truncated, damaged, has a newer version or is no artifact
  explicit ArtifactFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::string& content() const { return content_; }
  const std::vector<ArtifactSection>& sections() const { return sections_; }
  /// Checks the bytes of a section.
  /// Cost:   reads all bytes
  /// Throws: c10::ValueError if the checksum does not match
  void check(const ArtifactSection& section) const;

 private:
  MappedFile file_;
  std::string content_;
  std::vector<ArtifactSection> sections_;
};

}  // namespace bellows::export_detail
