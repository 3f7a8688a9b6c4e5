#include "bellows/io/tables/csv.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace bellows::io {

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

bool is_line_end(char c) {
  return c == '\n' || c == '\r';
}

}  // namespace

CsvReader::CsvReader(ByteSpan bytes, std::string where, char separator)
    : text_(as_text(bytes)), where_(std::move(where)), separator_(separator) {
  TORCH_CHECK_VALUE(separator != '"' && !is_line_end(separator), "csv: the separator cannot be a quote or a line end.");
}

uint64_t CsvReader::row_start(uint64_t offset) const {
  if (offset == 0 && text_.starts_with(kByteOrderMark)) offset = kByteOrderMark.size();
  while (offset < text_.size() && is_line_end(text_[offset])) ++offset;
  return offset;
}

std::string CsvReader::where(uint64_t offset) const {
  const std::string_view before = text_.substr(0, offset);
  size_t lines = 1;
  for (size_t i = 0; i < before.size(); ++i) {
    const bool ends = before[i] == '\n' || (before[i] == '\r' && (i + 1 == text_.size() || text_[i + 1] != '\n'));
    lines += ends ? 1 : 0;
  }
  return c10::str(where_, ", line ", lines, ", byte ", offset);
}

/// Reads from after the opening quote to after the closing one.
uint64_t CsvReader::read_quoted(uint64_t offset, CsvCell& cell) const {
  const uint64_t begin = offset;
  for (;;) {
    const size_t quote = text_.find('"', offset);
    TORCH_CHECK_VALUE(quote != std::string_view::npos, where(begin - 1), ": this opening quote has no closing quote.");
    if (quote + 1 < text_.size() && text_[quote + 1] == '"') {
      cell.doubled_quotes = true;
      offset = quote + 2;
      continue;
    }
    cell.text = text_.substr(begin, quote - begin);
    cell.offset = begin;
    return quote + 1;
  }
}

uint64_t CsvReader::read_row(uint64_t offset, std::vector<CsvCell>& cells) const {
  cells.clear();
  offset = row_start(offset);
  if (offset >= text_.size()) return text_.size();
  for (;;) {
    CsvCell& cell = cells.emplace_back();
    if (offset < text_.size() && text_[offset] == '"') {
      offset = read_quoted(offset + 1, cell);
      TORCH_CHECK_VALUE(offset == text_.size() || text_[offset] == separator_ || is_line_end(text_[offset]),
                        where(offset), ": expected a separator or the end of the line after a closing quote, found ",
                        printable(text_.substr(offset), 20), ". Write a quote inside quotes twice.");
    } else {
      size_t end = offset;
      while (end < text_.size() && text_[end] != separator_ && !is_line_end(text_[end])) ++end;
      cell.text = text_.substr(offset, end - offset);
      cell.offset = offset;
      offset = end;
    }
    if (offset == text_.size()) return offset;
    if (text_[offset] != separator_) break;
    ++offset;
  }
  const bool crlf = text_[offset] == '\r' && offset + 1 < text_.size() && text_[offset + 1] == '\n';
  return offset + (crlf ? 2 : 1);
}

void append_unquoted(const CsvCell& cell, Bytes& out) {
  for (size_t i = 0; i < cell.text.size(); ++i) {
    out.push_back(static_cast<std::byte>(cell.text[i]));
    if (cell.doubled_quotes && cell.text[i] == '"') ++i;
  }
}

void append_csv_cell(std::string& out, std::string_view text, char separator, bool alone) {
  const char special[] = {separator, '"', '\n', '\r', '\0'};
  if (text.find_first_of(std::string_view(special, 4)) == std::string_view::npos && (!alone || !text.empty())) {
    out += text;
    return;
  }
  out += '"';
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  out += '"';
}

}  // namespace bellows::io
