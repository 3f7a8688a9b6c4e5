#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// The location of one regular file in a tar archive.
struct TarMember {
  std::string name;
  uint64_t offset = 0;  ///< position of the data in the (uncompressed) archive
  uint64_t size = 0;
  bool operator==(const TarMember&) const = default;
};

/// An index that gives random access to an archive without reading all its headers.
struct TarIndex {
  std::string version;         ///< a text that identifies the version of the archive
  uint64_t archive_bytes = 0;  ///< size of the uncompressed archive
  std::vector<TarMember> members;
  bool operator==(const TarIndex&) const = default;
};

/// Creates the index from the headers of an uncompressed archive.
/// Params: where – name of the archive for error messages
/// Throws: c10::ValueError under the same conditions as TarReader, if a name contains `..`, or if there are more than
///         16 million members
TarIndex make_tar_index(ByteSpan archive, const std::string& where);

/// Encodes the index as a file that contains a version number, lengths and a checksum.
std::string encode_tar_index(const TarIndex& index);
/// Throws: c10::ValueError if the file is not an index, is damaged or has a different version number, or if members are
///         outside the archive
TarIndex decode_tar_index(ByteSpan file, std::string_view where);

/// Returns the member's data if the tar header in front of it matches the index. Names are compared without regard to
/// case, and only if they have at most 100 bytes. The header is not checked for members of 8 GiB or more.
/// Params: index – name of the index for error messages
/// Throws: c10::ValueError if the index does not match the archive (the message states the member and the byte offset)
ByteSpan tar_member_data(ByteSpan archive, const TarMember& member, std::string_view index);

/// Formats DALI's index of a WebDataset shard. Each line describes a run of members that have the same name up to the
/// first dot, with `suffix offset size name` for each member. Names without a suffix or a base name are omitted,
/// because DALI does not support them.
/// Throws: c10::ValueError if there are no members, or if a name contains white space, which the format does not
///         support
/// Ref:    NVIDIA/DALI tools/wds2idx.py, version 1.2, which writes the same bytes
std::string dali_index(const std::vector<TarMember>& members);

/// Parses a DALI index of version 1.2 or 1.1. In version 1.1, members have no names.
/// Throws: c10::ValueError if the text is not an index, if counts are wrong, or if offsets are not multiples of 512.
///         The message states the line, and the expected and actual content
std::vector<TarMember> parse_dali_index(std::string_view text, std::string_view where);

}  // namespace bellows::io
