#pragma once

// Shared code of the pack's reader and writer: constants of the layout, field definitions, records. docs/formats.md
// describes the layout.

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
  uint64_t bytes = 0;  ///< used bytes: header, records, field definitions
  uint64_t number = 0;
  uint64_t first_sample = 0;
  uint32_t samples = 0;
  uint32_t field_bytes = 0;  ///< size of the definitions at the block's end, of the fields that it uses first
  uint64_t page_bytes = 0;
};

/// Params:  bytes – at least kPackHeader
/// Returns: nothing if no block of this version begins there
std::optional<PackBlockHeader> parse_pack_block_header(ByteSpan bytes);
void append_pack_block_header(std::string& out, const PackBlockHeader& header);

/// Parses all definitions in `bytes` and appends them to `fields`.
/// Params: at – offset in the file, for messages
/// Throws: c10::ValueError if a definition is malformed or there are too many
void parse_pack_fields(ByteSpan bytes, uint64_t at, std::string_view where, std::vector<PackField>& fields);
void append_pack_field(std::string& out, const PackField& field);

/// Params: bytes – the record
///         offset – of the record in the file
///         where – names the file; must outlive the record
/// Throws: c10::ValueError if its head does not fit into it
PackRecord parse_pack_record(ByteSpan bytes, uint64_t offset, std::span<const PackField> fields,
                             std::string_view where);

/// True for types that packs support. The number in the file is c10's.
bool is_pack_dtype(c10::ScalarType dtype);
/// Bytes of an array; nothing if a size is negative or the total exceeds 63 bits.
std::optional<uint64_t> pack_array_bytes(c10::ScalarType dtype, c10::IntArrayRef sizes);

}  // namespace bellows::io
