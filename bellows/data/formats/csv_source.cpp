#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "bellows/core/error.h"
#include "bellows/data/formats/shard_files.h"
#include "bellows/data/formats/table_impl.h"
#include "bellows/data/formats/table_source.h"
#include "bellows/io/csv.h"
#include "bellows/io/number_text.h"

namespace bellows::data {

namespace {

std::string_view without_spaces(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// Digits that mean more than their value: "007", or more of them than 64 bits hold.
bool is_code(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  const bool digits = text.find_first_not_of("0123456789") == std::string_view::npos;
  const bool zero_first = text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
  return zero_first || (digits && !io::parse_int(text));
}

/// One column, and what its cells have been so far.
struct CsvColumn {
  enum class Type { text, integer, real };

  std::string name;
  bool fixed_text = false, is_label = false;
  bool integers = true, numbers = true, has_empty = false, has_number = false;

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
    } else if (!integers || !io::parse_int(text)) {
      integers = false;
      numbers = io::parse_float(text).has_value();
    }
  }
  Type type() const {
    if (fixed_text || !numbers || !has_number) return Type::text;
    return integers && !has_empty ? Type::integer : Type::real;
  }
};

class CsvSource final : public Source {
 public:
  using Source::read;

  CsvSource(const std::vector<std::string>& paths, CsvOptions options) : options_(std::move(options)), files_(paths) {
    for (size_t file = 0; file < files_.size(); ++file) {
      maps_.push_back(files_.map(file));
      readers_.emplace_back(maps_.back()->bytes(), files_.name(file), options_.separator);
      pictures_.emplace_back(options_.image_folder, files_.name(file));
      add_rows(file);
    }
    TORCH_CHECK_VALUE(!rows_.empty(), "open_csv: ", files_.describe(), " has no rows.");
    for (const CsvColumn& column : columns_) types_.push_back(column.type());
  }

  int64_t size() const override { return static_cast<int64_t>(rows_.size()); }
  bool stored() const override { return true; }
  std::string describe() const override { return c10::str(size(), " rows of ", files_.describe()); }
  std::vector<int64_t> block_starts() const override {
    std::vector<int64_t> starts = starts_;
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    if (starts.back() == size()) starts.pop_back();  // files without rows
    return starts;
  }

  void read(int64_t index, Sample& sample) const override {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), index);
    const auto file = static_cast<size_t>(next - starts_.begin() - 1);
    sample.clear();
    sample.id = index;
    sample.file = files_.name(file);
    thread_local std::vector<io::CsvCell> cells;
    try {
      maps_[file]->check_size();
      const uint64_t row = rows_[static_cast<size_t>(index)];
      const uint64_t end = read_cells(file, row, cells);
      sample.buffer.reserve(end - row + 8 * cells.size());
      for (size_t i = 0; i < cells.size(); ++i) add_field(file, i, cells[i], sample);
    } catch (const c10::ValueError& error) {
      TORCH_CHECK_VALUE(false, "read: sample ", index, ": ", user_message(error));
    }
  }

 private:
  uint64_t read_cells(size_t file, uint64_t row, std::vector<io::CsvCell>& cells) const {
    const uint64_t end = readers_[file].read_row(row, cells);
    TORCH_CHECK_VALUE(cells.size() == columns_.size(), readers_[file].where(row), ": expected ", columns_.size(),
                      " cells, as the header has, found ", cells.size(), ".");
    return end;
  }

  void add_rows(size_t file) {
    const io::CsvReader& reader = readers_[file];
    const uint64_t end = maps_[file]->bytes().size();
    std::vector<io::CsvCell> cells;
    uint64_t at = 0;
    if (!options_.columns.empty()) {
      if (file == 0) set_columns(options_.columns);
    } else {
      at = reader.read_row(0, cells);
      read_header(file, cells);
    }
    starts_.push_back(size());
    for (at = reader.row_start(at); at < end; at = reader.row_start(at)) {
      rows_.push_back(at);
      at = read_cells(file, at, cells);
      for (size_t i = 0; i < cells.size(); ++i) see(file, columns_[i], cells[i]);
    }
  }

  void see(size_t file, CsvColumn& column, const io::CsvCell& cell) const {
    column.see(cell.text);
    TORCH_CHECK_VALUE(!column.is_label || (column.integers && !column.has_empty), readers_[file].where(cell.offset),
                      ": expected a whole number in the column \"label\", found ", io::printable(cell.text),
                      ". Number the classes, or read the column as text: open_csv(paths, {.text = {\"label\"}}).");
  }

  void read_header(size_t file, const std::vector<io::CsvCell>& cells) {
    std::vector<std::string> names;
    for (const io::CsvCell& cell : cells) {
      io::Bytes name;
      io::append_unquoted(cell, name);
      names.emplace_back(io::as_text(name));
      if (names.back().empty()) names.back() = c10::str("column", names.size() - 1);
    }
    TORCH_CHECK_VALUE(!names.empty(), "open_csv: ", files_.name(file),
                      ": expected a line with the columns' names, found ", io::describe_content(maps_[file]->bytes()),
                      ".");
    if (file == 0) return set_columns(names);
    const bool same = std::equal(names.begin(), names.end(), columns_.begin(), columns_.end(),
                                 [](const std::string& name, const CsvColumn& column) { return name == column.name; });
    TORCH_CHECK_VALUE(same, "open_csv: ", files_.name(file), " has the columns ", c10::Join(", ", names), "; those of ",
                      files_.name(0), " are others.");
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
                      io::printable(*twice), ". Name them: open_csv(paths, {.columns = {…}}).");
    std::vector<std::string> asked = options_.text;
    if (!options_.image_column.empty()) asked.push_back(options_.image_column);
    for (const std::string& name : asked) {
      TORCH_CHECK_VALUE(has(names, name), "open_csv: ", files_.name(0), " has no column \"", name, "\".",
                        did_you_mean(name, names), " It has: ", c10::Join(", ", names), ".");
    }
  }

  void add_field(size_t file, size_t which, const io::CsvCell& cell, Sample& sample) const {
    const std::string& name = columns_[which].name;
    Field field{.name = name, .bytes = io::as_bytes(cell.text), .offset = cell.offset};
    const size_t at = sample.buffer.size();
    if (types_[which] != CsvColumn::Type::text) {
      const uint64_t bits = number_bits(file, which, cell);
      sample.buffer.resize(at + sizeof(bits));
      std::memcpy(sample.buffer.data() + at, &bits, sizeof(bits));
      field.is_array = true;
      field.dtype = types_[which] == CsvColumn::Type::integer ? c10::kLong : c10::kDouble;
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

  uint64_t number_bits(size_t file, size_t which, const io::CsvCell& cell) const {
    const std::string_view text = without_spaces(cell.text);
    if (types_[which] == CsvColumn::Type::integer) {
      if (const auto value = io::parse_int(text)) return std::bit_cast<uint64_t>(*value);
    } else {
      if (text.empty()) return std::bit_cast<uint64_t>(std::numeric_limits<double>::quiet_NaN());
      if (const auto value = io::parse_float(text)) return std::bit_cast<uint64_t>(*value);
    }
    TORCH_CHECK_VALUE(false, readers_[file].where(cell.offset), ": expected a number in the column \"",
                      columns_[which].name, "\", found ", io::printable(cell.text),
                      ": the file was changed since it was opened.");
  }

  CsvOptions options_;
  ShardFiles files_;
  std::vector<std::shared_ptr<const MappedFile>> maps_;
  std::vector<io::CsvReader> readers_;
  std::vector<PictureFolder> pictures_;
  std::vector<CsvColumn> columns_;
  std::vector<CsvColumn::Type> types_;
  std::vector<uint64_t> rows_;   // where each row starts in its file
  std::vector<int64_t> starts_;  // the first row of each file
};

}  // namespace

SourcePtr open_csv(const std::vector<std::string>& paths, const CsvOptions& options) {
  return std::make_shared<CsvSource>(paths, options);
}

}  // namespace bellows::data
