#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/data/formats/row_source.h"
#include "bellows/data/formats/table_source.h"
#include "bellows/io/tables/csv.h"
#include "bellows/io/tables/number_text.h"

namespace bellows::data {

namespace {

std::string_view without_spaces(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// True for digits that are not just a number: "007", or more digits than 64 bits can hold.
bool is_code(std::string_view text) {
  const bool fits = io::parse_int(text) || io::parse_uint(text);
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  const bool digits = text.find_first_not_of("0123456789") == std::string_view::npos;
  const bool zero_first = text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
  return zero_first || (digits && !fits);
}

/// One column and the properties of its cells so far.
struct CsvColumn {
  enum class Type { text, integer, unsigned_integer, real };

  std::string name;
  bool fixed_text = false, is_label = false;
  bool integers = true, numbers = true, has_empty = false, has_number = false;
  bool negative = false, big = false;  // of integers: some are below 0; some are 2^63 or more

  void see(std::string_view cell) {
    if (fixed_text || !numbers) return;
    const std::string_view text = without_spaces(cell);
    if (text.empty()) {
      has_empty = true;
      return;
    }
    has_number = true;
    if (is_code(text)) {
      integers = numbers = false;
    } else if (io::parse_int(text)) {
      negative = negative || text.starts_with('-');
    } else if (io::parse_uint(text)) {
      big = true;
    } else {
      integers = false;
      const auto value = io::parse_float(text);
      // As in pandas, "1e400" stays text: it is infinite only as a float64.
      numbers = value && (!std::isinf(*value) || text.find_first_of("0123456789") == std::string_view::npos);
    }
  }
  Type type() const {
    const bool whole = integers && !has_empty;
    if (fixed_text || !numbers || !has_number || (big && (negative || !whole))) return Type::text;
    return !whole ? Type::real : big ? Type::unsigned_integer : Type::integer;
  }
};

c10::ScalarType csv_dtype(CsvColumn::Type type) {
  using enum CsvColumn::Type;
  return type == integer ? c10::kLong : type == unsigned_integer ? c10::kUInt64 : c10::kDouble;
}

class CsvSource final : public RowSource {
 public:
  CsvSource(const std::vector<std::string>& paths, CsvOptions options)
      : RowSource(paths, options.image_folder), options_(std::move(options)) {
    for (size_t file = 0; file < files_.size(); ++file) add_rows(file);
    TORCH_CHECK_VALUE(rows_.size() > 0, "open_csv: ", files_.describe(), " has no rows.");
    types_.reserve(columns_.size());
    for (const CsvColumn& column : columns_) types_.push_back(column.type());
  }

  std::string describe() const override { return c10::str(size(), " rows of ", files_.describe()); }

 private:
  void fill(size_t file, uint64_t row, Sample& sample) const override {
    thread_local std::vector<io::CsvCell> cells;
    const io::CsvReader reader(files_.content(file, sample.owner), files_.name(file), options_.separator);
    uint64_t end = 0;
    parse_content(files_, file, [&] { end = read_cells(reader, row, cells); });
    sample.buffer.reserve(end - row + 8 * cells.size());
    for (size_t i = 0; i < cells.size(); ++i) add_field(reader, file, i, cells[i], sample);
  }

  uint64_t read_cells(const io::CsvReader& reader, uint64_t row, std::vector<io::CsvCell>& cells) const {
    const uint64_t end = reader.read_row(row, cells);
    TORCH_CHECK_VALUE(cells.size() == columns_.size(), reader.where(row), ": expected ", columns_.size(),
                      " cells, as in the header, found ", cells.size(), ".");
    return end;
  }

  void add_rows(size_t file) {
    std::shared_ptr<const void> owner;
    const io::ByteSpan content = files_.content(file, owner);
    const io::CsvReader reader(content, files_.name(file), options_.separator);
    std::vector<io::CsvCell> cells;
    uint64_t at = 0;
    if (!options_.columns.empty()) {
      if (file == 0) set_columns(options_.columns);
    } else {
      parse_content(files_, file, [&] { at = reader.read_row(0, cells); });
      read_header(file, content, cells);
    }
    rows_.add_file();
    parse_content(files_, file, [&] {
      for (at = reader.row_start(at); at < content.size(); at = reader.row_start(at)) {
        rows_.add(at);
        at = read_cells(reader, at, cells);
        for (size_t i = 0; i < cells.size(); ++i) see(reader, columns_[i], cells[i]);
      }
    });
  }

  void see(const io::CsvReader& reader, CsvColumn& column, const io::CsvCell& cell) const {
    column.see(cell.text);
    if (rows_.size() == 1 && column.is_label && !column.numbers && !is_code(without_spaces(cell.text))) {
      column.is_label = false;  // the classes have names, as in JSON Lines
      column.fixed_text = true;
    }
    TORCH_CHECK_VALUE(!column.is_label || (column.integers && !column.has_empty && !column.big),
                      reader.where(cell.offset), ": expected an integer class number in the column \"label\", found ",
                      column.numbers && !column.has_empty ? "the number " : "", io::printable(cell.text),
                      ". Write integers from 0 on, or only names. To predict numbers (loss: mse), rename the column, "
                      "for example to \"target\".");
  }

  void read_header(size_t file, io::ByteSpan content, const std::vector<io::CsvCell>& cells) {
    std::vector<std::string> names;
    for (const io::CsvCell& cell : cells) {
      io::Bytes name;
      io::append_unquoted(cell, name);
      names.emplace_back(io::as_text(name));
      if (names.back().empty()) names.back() = c10::str("column", names.size() - 1);
    }
    TORCH_CHECK_VALUE(!names.empty(), "open_csv: ", files_.name(file),
                      ": expected a header line with the column names, found ", io::describe_content(content), ".");
    if (file == 0) return set_columns(names);
    const bool same = std::equal(names.begin(), names.end(), columns_.begin(), columns_.end(),
                                 [](const std::string& name, const CsvColumn& column) { return name == column.name; });
    parse_content(files_, file, [&] {
      TORCH_CHECK_VALUE(same, "open_csv: ", files_.name(file), " has the columns ", c10::Join(", ", names),
                        ", but the columns of ", files_.name(0), " are different.");
    });
  }

  void set_columns(const std::vector<std::string>& names) {
    const auto has = [](const std::vector<std::string>& list, const std::string& name) {
      return std::find(list.begin(), list.end(), name) != list.end();
    };
    for (const std::string& name : names) {
      CsvColumn column{.name = name};
      column.fixed_text = has(options_.text, name) || has({"cls", "txt", "json", "__key__"}, name) ||
                          (!options_.image_column.empty() && name == options_.image_column);
      column.is_label = name == "label" && !column.fixed_text;
      columns_.push_back(std::move(column));
    }
    std::vector<std::string> sorted = names;
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    TORCH_CHECK_VALUE(twice == sorted.end(), "open_csv: ", files_.name(0), ": two columns are called ",
                      io::printable(*twice), ". Rename one of them ",
                      options_.columns.empty() ? "in the header line." : "in `columns`.");
    std::vector<std::string> asked = options_.text;
    if (!options_.image_column.empty()) asked.push_back(options_.image_column);
    for (const std::string& name : asked) {
      TORCH_CHECK_VALUE(has(names, name), "open_csv: ", files_.name(0), " has no column \"", name, "\".",
                        did_you_mean(name, names), " The columns are: ", c10::Join(", ", names), ".");
    }
  }

  void add_field(const io::CsvReader& reader, size_t file, size_t which, const io::CsvCell& cell,
                 Sample& sample) const {
    const std::string& name = columns_[which].name;
    Field field{.name = name, .bytes = io::as_bytes(cell.text), .offset = cell.offset};
    const size_t at = sample.buffer.size();
    if (types_[which] != CsvColumn::Type::text) {
      const uint64_t bits = number_bits(reader, which, cell);
      sample.buffer.resize(at + sizeof(bits));
      std::memcpy(sample.buffer.data() + at, &bits, sizeof(bits));
      field.is_array = true;
      field.dtype = csv_dtype(types_[which]);
      field.bytes = io::ByteSpan(sample.buffer).subspan(at);
    } else if (cell.doubled_quotes) {
      io::append_unquoted(cell, sample.buffer);
      field.bytes = io::ByteSpan(sample.buffer).subspan(at);
    }
    if (name == "__key__") {
      sample.key = io::as_text(field.bytes);
    } else if (!options_.image_column.empty() && name == options_.image_column) {
      pictures_[file].add(io::as_text(field.bytes), sample);
    } else {
      sample.fields.push_back(field);
    }
  }

  uint64_t number_bits(const io::CsvReader& reader, size_t which, const io::CsvCell& cell) const {
    const std::string_view text = without_spaces(cell.text);
    if (types_[which] == CsvColumn::Type::integer) {
      if (const auto value = io::parse_int(text)) return std::bit_cast<uint64_t>(*value);
    } else if (types_[which] == CsvColumn::Type::unsigned_integer) {
      if (const auto value = io::parse_uint(text)) return *value;
    } else {
      if (text.empty()) return std::bit_cast<uint64_t>(std::numeric_limits<double>::quiet_NaN());
      if (const auto value = io::parse_float(text)) return std::bit_cast<uint64_t>(*value);
    }
    TORCH_CHECK_VALUE(false, reader.where(cell.offset), ": expected a number in the column \"", columns_[which].name,
                      "\", found ", io::printable(cell.text), ". The file has changed since it was opened.");
  }

  CsvOptions options_;
  std::vector<CsvColumn> columns_;
  std::vector<CsvColumn::Type> types_;
};

}  // namespace

SourcePtr open_csv(const std::vector<std::string>& paths, const CsvOptions& options) {
  return std::make_shared<CsvSource>(paths, options);
}

}  // namespace bellows::data
