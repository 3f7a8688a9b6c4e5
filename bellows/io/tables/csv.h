#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// One cell of a row.
struct CsvCell {
  std::string_view text;        ///< without its quotes
  uint64_t offset = 0;          ///< of `text` in the file
  bool doubled_quotes = false;  ///< `text` holds "" where " is meant: see unquoted
};

/// The rows of a CSV file in memory: cells between separators, quoted ones may hold separators, line ends and doubled
/// quotes. Lines end in LF, CR LF or CR; empty lines are no rows; a byte order mark is passed over.
/// Threads: safe from all threads
/// Ref:     RFC 4180; Python's csv.reader(strict=True)
class CsvReader {
 public:
  /// Params: bytes – outlive the reader; where – names them in errors
  CsvReader(ByteSpan bytes, std::string where, char separator = ',');

  /// Reads the first row at or behind `offset`, which is 0 or what an earlier call returned.
  /// Returns: the offset behind the row; at the end, with no cells, the size of the file
  /// Throws:  c10::ValueError – a quote that is never closed, text behind a closing quote: line and byte
  uint64_t read_row(uint64_t offset, std::vector<CsvCell>& cells) const;

  /// The row behind empty lines and the byte order mark.
  uint64_t row_start(uint64_t offset) const;
  /// "FILE, line 7, byte 123", for messages.
  std::string where(uint64_t offset) const;

 private:
  uint64_t read_quoted(uint64_t offset, CsvCell& cell) const;

  std::string_view text_;
  std::string where_;
  char separator_;
};

/// What the cell holds, with single quotes for doubled ones, appended to `out`.
void append_unquoted(const CsvCell& cell, Bytes& out);

/// Appends `text` as a cell, quoted where it must be.
/// Params: alone – the row has no other cell: an empty text is quoted too
/// Ref:    csv.writer, byte for byte
void append_csv_cell(std::string& out, std::string_view text, char separator = ',', bool alone = false);

}  // namespace bellows::io
