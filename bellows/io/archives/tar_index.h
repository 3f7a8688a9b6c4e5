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
  uint64_t offset = 0;  ///< of its data from the start of the (uncompressed) archive
  uint64_t size = 0;
  bool operator==(const TarMember&) const = default;
};

/// An index for random access to an archive without reading all its headers.
struct TarIndex {
  std::string version;         ///< of the archive: a text that identifies its version
  uint64_t archive_bytes = 0;  ///< uncompressed
  std::vector<TarMember> members;
  bool operator==(const TarIndex&) const = default;
};

/// Creates the index from the headers of an uncompressed archive.
/// Params: where – names it in errors
/// Throws: c10::ValueError as TarReader, if a name contains `..`, or if there are more than 16 million members
TarIndex make_tar_index(ByteSpan archive, const std::string& where);

/// Encodes the index as a file that contains a version number, lengths and a checksum.
std::string encode_tar_index(const TarIndex& index);
/// Throws: c10::ValueError if the file is not an index, has another version or is damaged, or if members are outside
///         the archive
TarIndex decode_tar_index(ByteSpan file, std::string_view where);

/// Returns the member's data if the header before it matches the index, ignoring case.
/// Params: index – names the index in errors
/// Throws: c10::ValueError if the index does not match the archive; the message names the member and the byte offset
ByteSpan tar_member_data(ByteSpan archive, const TarMember& member, std::string_view index);

/// DALI's index of a WebDataset shard: one line for each run of members with the same name up to the first dot, with
/// `suffix offset size name` of each. Names without a suffix or a base name are omitted, because DALI does not support
/// them.
/// Throws: c10::ValueError if there are no members, or if a name contains white space, which the format does not
///         support
/// Ref:    NVIDIA/DALI tools/wds2idx.py, version 1.2, byte for byte
std::string dali_index(const std::vector<TarMember>& members);

/// Parses versions 1.1, whose members have no names, and 1.2.
/// Throws: c10::ValueError if the text is not an index, if counts are wrong, or if offsets are not multiples of 512;
///         the message names the line, what was expected and what was found
std::vector<TarMember> parse_dali_index(std::string_view text, std::string_view where);

}  // namespace bellows::io
