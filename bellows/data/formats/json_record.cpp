#include <c10/util/Exception.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "bellows/data/formats/table_impl.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

namespace {

using JsonRecord = nlohmann::ordered_json;

constexpr size_t kMaxJsonDepth = 256;

using Where = std::function<std::string()>;

/// Goes over a line and notes which of its columns have numbers that are no 64-bit integers.
class ColumnScan final : public nlohmann::json_sax<JsonRecord> {
 public:
  ColumnScan(const Where& where, JsonColumns& columns) : where_(where), columns_(columns) {}

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(int64_t) override { return value(); }
  bool number_unsigned(uint64_t number) override { return number >> 63 ? real() : value(); }
  bool number_float(double, const std::string&) override { return real(); }
  bool string(std::string&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool start_object(size_t) override { return open(true); }
  bool start_array(size_t) override { return open(false); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (depth_ == 1) column_ = &columns_.try_emplace(name, false).first->second;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    TORCH_CHECK_VALUE(false, where_(), ": expected one JSON object, found a mistake at byte ",
                      position > 0 ? position - 1 : 0, " of the line.");
  }

 private:
  bool value() {
    check_object(false);
    return true;
  }
  bool real() {
    check_object(false);
    *column_ = true;
    return true;
  }
  bool open(bool object) {
    check_object(object);
    TORCH_CHECK_VALUE(++depth_ <= kMaxJsonDepth, where_(), ": nested deeper than ", kMaxJsonDepth, ".");
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }
  void check_object(bool object) const {
    TORCH_CHECK_VALUE(depth_ > 0 || object, where_(), ": expected a JSON object, found another value.");
  }

  const Where& where_;
  JsonColumns& columns_;
  bool* column_ = nullptr;
  size_t depth_ = 0;
};

template <class T>
void append_raw(std::vector<std::byte>& out, T value) {
  const size_t at = out.size();
  out.resize(at + sizeof(T));
  std::memcpy(out.data() + at, &value, sizeof(T));
}

/// False also for a fraction where none was when the columns were learnt.
bool is_number(const JsonRecord& value, bool real) {
  return real ? value.is_number()
              : value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() >> 63);
}

/// Appends the numbers of a list, nested equally deep and long everywhere. False where it is something else.
class ListReader {
 public:
  ListReader(bool real, std::vector<std::byte>& out) : real_(real), out_(out) {}

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
    if (value.is_boolean() != bools_ || !(bools_ || is_number(value, real_))) return false;
    if (bools_) {
      append_raw(out_, static_cast<uint8_t>(value.get<bool>()));
    } else if (real_) {
      append_raw(out_, value.get<double>());
    } else {
      append_raw(out_, value.get<int64_t>());
    }
    return true;
  }

  bool real_;
  std::vector<std::byte>& out_;
  bool bools_ = false;
  std::vector<int64_t> shape_;
};

/// Where a field's bytes and sizes lie, until nothing moves any more.
struct Place {
  size_t bytes, sizes;
};

/// Appends the value to the sample's memory and describes it in `field`.
void append_value(const JsonRecord& value, bool real, Field& field, Sample& sample) {
  const size_t before = sample.buffer.size();
  field.is_array = true;
  field.dtype = real ? c10::kDouble : c10::kLong;
  if (value.is_string()) {
    field.is_array = false;
    const auto text = io::as_bytes(value.get_ref<const std::string&>());
    sample.buffer.insert(sample.buffer.end(), text.begin(), text.end());
    return;
  }
  if (value.is_boolean()) {
    field.dtype = c10::kBool;
    return append_raw(sample.buffer, static_cast<uint8_t>(value.get<bool>()));
  }
  if (is_number(value, real)) {
    return real ? append_raw(sample.buffer, value.get<double>()) : append_raw(sample.buffer, value.get<int64_t>());
  }
  ListReader list(real, sample.buffer);
  if (value.is_array() && list.read(value)) {
    if (list.all_bool()) field.dtype = c10::kBool;
    sample.shapes.insert(sample.shapes.end(), list.shape().begin(), list.shape().end());
    return;
  }
  sample.buffer.resize(before);
  field.is_array = false;
  const std::string text = value.dump();
  sample.buffer.insert(sample.buffer.end(), io::as_bytes(text).begin(), io::as_bytes(text).end());
}

JsonRecord parse_record(std::string_view line, const Where& where) {
  const auto limit = [&](int depth, JsonRecord::parse_event_t, const JsonRecord&) {
    TORCH_CHECK_VALUE(depth <= static_cast<int>(kMaxJsonDepth), where(), ": nested deeper than ", kMaxJsonDepth, ".");
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
    if (value.is_null()) continue;
    const auto column = columns.find(name);
    TORCH_CHECK_VALUE(column != columns.end(), where(), ": has ", io::printable(name),
                      ", which no line had when the file was opened.");
    Field field{.name = column->first};
    places.push_back({sample.buffer.size(), sample.shapes.size()});
    append_value(value, column->second, field, sample);
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
