#pragma once

// What the pack's reader and writer share: the layout's constants, field definitions, records. docs/formats.md says it
// in prose.

#include <optional>

#include "bellows/io/records/pack.h"

namespace bellows::io {

inline constexpr std::string_view kPackMagic{
    "\x89"
    "BWPACK\n",
    8},
    kPackEnd{"BWPKEND\n", 8};
inline constexpr uint32_t kPackVersion = 1;
inline constexpr uint64_t kPackHeader = 64, kPackFooter = 64, kPackSampleEntry = 16, kPackBlockEntry = 32,
                          kPackRecordHead = 16, kPackItem = 24, kPackAlignment = 64, kPackCrcStart = 16;
inline constexpr size_t kMaxPackFields = 65536, kMaxPackName = 4096, kMaxPackKey = 65536, kMaxPackDims = 64;

inline uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

/// The header of a block.
struct PackBlockHeader {
  uint32_t crc = 0;
  uint64_t bytes = 0;  ///< used: header, records, field definitions
  uint64_t number = 0;
  uint64_t first_sample = 0;
  uint32_t samples = 0;
  uint32_t field_bytes = 0;  ///< definitions at the block's end, of fields that it is the first to use
  uint64_t page_bytes = 0;
};

/// Params: bytes – at least kPackHeader
/// Nothing where no block of this version begins.
std::optional<PackBlockHeader> parse_pack_block_header(ByteSpan bytes);
void append_pack_block_header(std::string& out, const PackBlockHeader& header);

/// Appends the definitions in `bytes`, all of it, to `fields`.
/// Params: at – where it is in the file, for messages
/// Throws: c10::ValueError – malformed, too many
void parse_pack_fields(ByteSpan bytes, uint64_t at, std::string_view where, std::vector<PackField>& fields);
void append_pack_field(std::string& out, const PackField& field);

/// Params: bytes  – the record
///         offset – of it in the file
///         where  – names the file and lives as long as the record
/// Throws: c10::ValueError – its head does not fit into it
PackRecord parse_pack_record(ByteSpan bytes, uint64_t offset, std::span<const PackField> fields,
                             std::string_view where);

/// Types that packs hold. The number in the file is c10's.
bool is_pack_dtype(c10::ScalarType dtype);
/// Bytes of an array; nothing when it has a negative size or more than fit into 63 bits.
std::optional<uint64_t> pack_array_bytes(c10::ScalarType dtype, c10::IntArrayRef sizes);

}  // namespace bellows::io
