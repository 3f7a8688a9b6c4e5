#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bellows/io/bytes.h"

namespace bellows::io {

/// One cell of a row.
struct CsvCell {
  std::string_view text;        ///< content without the surrounding quotes
  uint64_t offset = 0;          ///< position of `text` in the file
  bool doubled_quotes = false;  ///< true: each "" in `text` represents one quote; see append_unquoted()
};

/// Reads the rows of a CSV file in memory. Separators divide a row into cells. Quoted cells can contain separators,
/// line ends and doubled quotes. Lines end with LF, CR LF or CR. Empty lines are not rows. A byte order mark is
/// skipped.
/// Threads: thread-safe
/// Ref:     RFC 4180; Python's csv.reader(strict=True)
class CsvReader {
 public:
  /// Params: bytes – must outlive the reader
  ///         where – name of the file for error messages
  CsvReader(ByteSpan bytes, std::string where, char separator = ',');

  /// Reads the first row at or after `offset`. The offset is 0 or the result of an earlier call.
  /// Returns: the offset after the row. At the end of the file, `cells` is empty and the result is the size of the file
  /// Throws:  c10::ValueError if a quote is not closed, or if text follows a closing quote (the message states the line
  ///          and the byte)
  uint64_t read_row(uint64_t offset, std::vector<CsvCell>& cells) const;

  /// Returns the offset of the next row, after empty lines and a byte order mark.
  uint64_t row_start(uint64_t offset) const;
  /// Formats an offset for messages: "FILE, line 7, byte 123".
  std::string where(uint64_t offset) const;

 private:
  uint64_t read_quoted(uint64_t offset, CsvCell& cell) const;

  std::string_view text_;
  std::string where_;
  char separator_;
};

/// Appends the content of the cell to `out`. Each doubled quote ("") becomes one quote (").
void append_unquoted(const CsvCell& cell, Bytes& out);

/// Appends `text` as a cell, quoted if necessary.
/// Params: alone – true: the row has no other cell, so an empty text is quoted, too
/// Ref:    Python's csv.writer, which writes the same bytes
void append_csv_cell(std::string& out, std::string_view text, char separator = ',', bool alone = false);

}  // namespace bellows::io
