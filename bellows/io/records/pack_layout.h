#pragma once

// Shared code of the pack's reader and writer: layout constants, field definitions and records. docs/formats.md
// describes the layout.

#include <optional>

#include "bellows/core/round_up.h"
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

/// The header of a block.
struct PackBlockHeader {
  uint32_t crc = 0;
  uint64_t bytes = 0;  ///< number of used bytes: header, records, field definitions
  uint64_t number = 0;
  uint64_t first_sample = 0;
  uint32_t samples = 0;
  /// Size of the field definitions at the end of the block, which define the fields that are new in this block.
  uint32_t field_bytes = 0;
  uint64_t page_bytes = 0;
};

/// Params:  bytes – at least kPackHeader bytes
/// Returns: nothing if the bytes are not the header of a block of this version
std::optional<PackBlockHeader> parse_pack_block_header(ByteSpan bytes);
void append_pack_block_header(std::string& out, const PackBlockHeader& header);

/// Parses all definitions in `bytes` and appends them to `fields`.
/// Params: at – position of `bytes` in the file, for messages
/// Throws: c10::ValueError if a definition is malformed, or if there are too many definitions
void parse_pack_fields(ByteSpan bytes, uint64_t at, std::string_view where, std::vector<PackField>& fields);
void append_pack_field(std::string& out, const PackField& field);

/// Parses the head of a record.
/// Params: bytes – the record
///         offset – position of the record in the file
///         where – name of the file for error messages; must outlive the record
/// Throws: c10::ValueError if the head does not fit into the record
PackRecord parse_pack_record(ByteSpan bytes, uint64_t offset, std::span<const PackField> fields,
                             std::string_view where);

/// True for types that packs support. The file stores c10's number of the type.
bool is_pack_dtype(c10::ScalarType dtype);
/// Returns the number of bytes of an array, or nothing if a size is negative or the number does not fit into 63 bits.
std::optional<uint64_t> pack_array_bytes(c10::ScalarType dtype, c10::IntArrayRef sizes);

}  // namespace bellows::io
