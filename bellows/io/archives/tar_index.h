#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// Where one regular file of a tar archive is.
struct TarMember {
  std::string name;
  uint64_t offset = 0;  ///< of its data from the start of the (uncompressed) archive
  uint64_t size = 0;
  bool operator==(const TarMember&) const = default;
};

/// What lets an archive be read from anywhere without walking over its headers.
struct TarIndex {
  std::string version;         ///< of the archive: in words that change with it
  uint64_t archive_bytes = 0;  ///< uncompressed
  std::vector<TarMember> members;
  bool operator==(const TarIndex&) const = default;
};

/// Walks over the headers of an uncompressed archive.
/// Params: where – names it in errors
/// Throws: c10::ValueError – as TarReader; a name with `..` in it, more than 16 million members
TarIndex make_tar_index(ByteSpan archive, const std::string& where);

/// The index as a file: version number, lengths and a checksum are in it.
std::string encode_tar_index(const TarIndex& index);
/// Throws: c10::ValueError – no such file, of another version, damaged, or members that lie outside the archive
TarIndex decode_tar_index(ByteSpan file, std::string_view where);

/// The member's data, if the header in front of it says the same as the index; the case of letters does not count.
/// Params: index – names the index in errors
/// Throws: c10::ValueError – the index does not match the archive: name, byte offset
ByteSpan tar_member_data(ByteSpan archive, const TarMember& member, std::string_view index);

/// DALI's index of a WebDataset shard: a line for each run of members with the same name up to the first dot, with
/// `suffix offset size name` of each. Left out: names without a suffix or a base name, which DALI cannot use either.
/// Throws: c10::ValueError – a name with white space, which the format cannot hold; no members
/// Ref:    NVIDIA/DALI tools/wds2idx.py, version 1.2, byte for byte
std::string dali_index(const std::vector<TarMember>& members);

/// Reads versions 1.1, whose members have no names, and 1.2.
/// Throws: c10::ValueError – not such an index, wrong counts, offsets that are not multiples of 512: line, expected, found
std::vector<TarMember> parse_dali_index(std::string_view text, std::string_view where);

}  // namespace bellows::io
