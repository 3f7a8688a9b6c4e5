#include "bellows/data/formats/json_record.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "bellows/io/bytes.h"

namespace bellows::data {

namespace {

using JsonRecord = nlohmann::ordered_json;

constexpr size_t kMaxJsonDepth = 256;

using Where = std::function<std::string()>;

/// Scans a line and records the number types of its columns.
class ColumnScan final : public nlohmann::json_sax<JsonRecord> {
 public:
  ColumnScan(const Where& where, JsonColumns& columns) : where_(where), columns_(columns) {}

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(int64_t number) override { return whole(number < 0, false, is_exact(number)); }
  bool number_unsigned(uint64_t number) override { return whole(false, number >> 63 != 0, is_exact(number)); }
  bool number_float(double, const std::string& text) override {
    value();
    TORCH_CHECK_VALUE(text.find_first_of(".eE") != std::string::npos, where_(), ": ", io::printable(text, 60),
                      " needs more than 64 bits. Write it as text, in quotes.");
    if (objects() == 1) column_->second.real = true;
    return check_type();
  }
  bool string(std::string&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool start_object(size_t) override {
    check_object(true);
    first_keys_.push_back(keys_.size());
    return deeper();
  }
  bool start_array(size_t) override {
    check_object(false);
    return deeper();
  }
  bool end_object() override {
    check_keys();
    --depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(std::string& name) override {
    keys_.push_back(name);
    if (depth_ == 1) column_ = columns_.try_emplace(name).first;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    TORCH_CHECK_VALUE(false, where_(), ": expected one JSON object, found invalid JSON at byte ",
                      position > 0 ? position - 1 : 0, " of the line.");
  }

 private:
  template <class T>
  static bool is_exact(T number) {
    constexpr auto digits = std::numeric_limits<double>::digits;
    const auto size = number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
    return size == 0 || static_cast<int>(std::bit_width(size)) - std::countr_zero(size) <= digits;
  }
  bool value() {
    check_object(false);
    return true;
  }
  bool whole(bool negative, bool big, bool exact) {
    value();
    if (objects() > 1) return true;  // objects stay JSON
    JsonColumn& column = column_->second;
    column.negative = column.negative || negative;
    column.big = column.big || big;
    column.inexact = column.inexact || !exact;
    return check_type();
  }
  bool check_type() const {
    if (objects() > 1) return true;
    const auto& [name, column] = *column_;
    TORCH_CHECK_VALUE(!column.real || !column.inexact, where_(), ": the numbers of ", io::printable(name),
                      " include fractions, so their type is float64, which cannot represent the integers exactly. "
                      "Write all of them as text, in quotes.");
    TORCH_CHECK_VALUE(column.real || !column.negative || !column.big, where_(), ": the numbers of ",
                      io::printable(name),
                      " include values below 0 and values above 2^63 - 1, and no 64-bit integer type holds both. Write "
                      "all of them as text, in quotes.");
    return true;
  }
  bool deeper() {
    TORCH_CHECK_VALUE(++depth_ <= kMaxJsonDepth, where_(), ": the JSON is nested deeper than ", kMaxJsonDepth, ".");
    return true;
  }
  void check_object(bool object) const {
    TORCH_CHECK_VALUE(depth_ > 0 || object, where_(), ": expected a JSON object, found another value.");
  }

  /// Ends an object and checks for duplicate keys, of which parsers silently keep the last one.
  void check_keys() {
    const auto begin = keys_.begin() + static_cast<std::ptrdiff_t>(first_keys_.back());
    std::sort(begin, keys_.end());
    const auto twice = std::adjacent_find(begin, keys_.end());
    TORCH_CHECK_VALUE(twice == keys_.end(), where_(), ": two values of one object are called ", io::printable(*twice),
                      ". Rename one of them.");
    keys_.erase(begin, keys_.end());
    first_keys_.pop_back();
  }
  size_t objects() const { return first_keys_.size(); }

  const Where& where_;
  JsonColumns& columns_;
  JsonColumns::iterator column_;
  size_t depth_ = 0;
  std::vector<std::string> keys_;   // of the open objects, outermost first
  std::vector<size_t> first_keys_;  // the first entry in keys_ of each object
};

template <class T>
void append_raw(std::vector<std::byte>& out, T value) {
  const size_t at = out.size();
  out.resize(at + sizeof(T));
  std::memcpy(out.data() + at, &value, sizeof(T));
}

/// Returns false also if the number does not have the type recorded for its column.
bool append_number(const JsonRecord& value, c10::ScalarType dtype, std::vector<std::byte>& out) {
  const bool big = value.is_number_unsigned() && value.get<uint64_t>() >> 63;
  if (dtype == c10::kDouble   ? !value.is_number()
      : dtype == c10::kUInt64 ? !value.is_number_unsigned()
                              : !value.is_number_integer() || big)
    return false;
  if (dtype == c10::kDouble) {
    append_raw(out, value.get<double>());
  } else if (dtype == c10::kUInt64) {
    append_raw(out, value.get<uint64_t>());
  } else {
    append_raw(out, value.get<int64_t>());
  }
  return true;
}

/// Appends the numbers of a list with uniform nesting depth and lengths. Returns false for other values.
class ListReader {
 public:
  ListReader(c10::ScalarType dtype, std::vector<std::byte>& out) : dtype_(dtype), out_(out) {}

  bool read(const JsonRecord& list) { return measure(list) && append(list, 0); }
  bool all_bool() const { return bools_; }
  const std::vector<int64_t>& shape() const { return shape_; }

 private:
  bool measure(const JsonRecord& list) {
    const JsonRecord* level = &list;
    for (; level->is_array(); level = &level->front()) {
      shape_.push_back(static_cast<int64_t>(level->size()));
      if (level->empty()) return true;
    }
    bools_ = level->is_boolean();
    return bools_ || level->is_number();
  }
  bool append(const JsonRecord& value, size_t depth) {
    if (depth < shape_.size()) {
      if (!value.is_array() || static_cast<int64_t>(value.size()) != shape_[depth]) return false;
      for (const JsonRecord& item : value) {
        if (!append(item, depth + 1)) return false;
      }
      return true;
    }
    if (value.is_boolean() != bools_) return false;
    if (!bools_) return append_number(value, dtype_, out_);
    append_raw(out_, static_cast<uint8_t>(value.get<bool>()));
    return true;
  }

  c10::ScalarType dtype_;
  std::vector<std::byte>& out_;
  bool bools_ = false;
  std::vector<int64_t> shape_;
};

/// The location of a field's bytes and sizes as offsets, until the memory no longer moves.
struct Place {
  size_t bytes, sizes;
};

void append_text(std::string_view text, std::vector<std::byte>& out) {
  const io::ByteSpan bytes = io::as_bytes(text);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

/// Appends the value to the sample's memory and describes it in `field`.
void append_value(const JsonRecord& value, c10::ScalarType dtype, Field& field, Sample& sample) {
  if (value.is_string()) return append_text(value.get_ref<const std::string&>(), sample.buffer);
  const size_t before = sample.buffer.size();
  field.is_array = true;
  field.dtype = dtype;
  if (value.is_boolean()) {
    field.dtype = c10::kBool;
    return append_raw(sample.buffer, static_cast<uint8_t>(value.get<bool>()));
  }
  if (append_number(value, dtype, sample.buffer)) return;
  ListReader list(dtype, sample.buffer);
  if (value.is_array() && list.read(value)) {
    if (list.all_bool()) field.dtype = c10::kBool;
    sample.shapes.insert(sample.shapes.end(), list.shape().begin(), list.shape().end());
    return;
  }
  sample.buffer.resize(before);
  field.is_array = false;
  field.dtype = c10::ScalarType::Undefined;
  append_text(value.dump(), sample.buffer);
}

JsonRecord parse_record(std::string_view line, const Where& where) {
  const auto limit = [&](int depth, JsonRecord::parse_event_t, const JsonRecord&) {
    TORCH_CHECK_VALUE(depth <= static_cast<int>(kMaxJsonDepth), where(), ": the JSON is nested deeper than ",
                      kMaxJsonDepth, ".");
    return true;
  };
  JsonRecord record = JsonRecord::parse(line, limit, false);
  TORCH_CHECK_VALUE(record.is_object(), where(), ": expected a JSON object, found ", io::printable(line, 60), ".");
  return record;
}

}  // namespace

void learn_json_record(std::string_view line, const Where& where, JsonColumns& columns) {
  ColumnScan scan(where, columns);
  JsonRecord::sax_parse(line, &scan);
}

void read_json_record(std::string_view line, const Where& where, const JsonColumns& columns, Sample& sample) {
  const JsonRecord record = parse_record(line, where);
  std::vector<Place> places;
  for (const auto& [name, value] : record.items()) {
    if (value.is_null() && name == "__key__") continue;
    const auto column = columns.find(name);
    TORCH_CHECK_VALUE(column != columns.end(), where(), ": the line has the key ", io::printable(name),
                      ", which no line had when the file was opened. Open the dataset again.");
    Field field{.name = column->first};
    places.push_back({sample.buffer.size(), sample.shapes.size()});
    append_value(value, column->second.dtype(), field, sample);
    sample.fields.push_back(field);
  }
  places.push_back({sample.buffer.size(), sample.shapes.size()});
  for (size_t i = 0; i < sample.fields.size(); ++i) {
    const Place &begin = places[i], &end = places[i + 1];
    sample.fields[i].bytes = io::ByteSpan(sample.buffer).subspan(begin.bytes, end.bytes - begin.bytes);
    sample.fields[i].sizes = c10::IntArrayRef(sample.shapes.data() + begin.sizes, end.sizes - begin.sizes);
  }
}

}  // namespace bellows::data
