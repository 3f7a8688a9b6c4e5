#include "bellows/io/records/example.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "bellows/io/tables/number_text.h"

namespace bellows::io {

namespace {

constexpr size_t most_varint_bytes = 10;
constexpr size_t most_tag_bytes = 5;
constexpr size_t most_nested_groups = 100;
constexpr size_t most_features = 1 << 20;  // two bytes are enough for one

enum class WireType : uint32_t { varint, fixed64, delimited, group_begin, group_end, fixed32 };

bool is_continued(std::byte b) {
  return std::to_integer<uint32_t>(b) >= 0x80;
}

/// Iterates over the fields of one protobuf message.
class WireReader {
 public:
  /// Params: start – of the outermost message; offsets in error messages count from it
  WireReader(ByteSpan bytes, const std::byte* start) : rest_(bytes), start_(start) {}

  uint32_t number = 0;
  WireType type{};
  ByteSpan payload;  ///< the field's value; for a number, its encoded bytes

  /// Reads the next field; returns false at the end of the message.
  bool next() {
    if (rest_.empty()) return false;
    read_tag();
    if (type == WireType::group_begin) {
      skip_group();
    } else {
      read_payload();
    }
    return true;
  }

  const std::byte* position() const { return rest_.data(); }
  bool is(uint32_t wanted_number, WireType wanted_type) const { return number == wanted_number && type == wanted_type; }
  WireReader inside() const { return {payload, start_}; }

  [[noreturn]] void fail(const char* expected, const std::byte* where) const {
    TORCH_CHECK_VALUE(false, "tf.train.Example: expected ", expected, " at byte ", where - start_,
                      ". The bytes are not a tf.train.Example, or are damaged.");
  }

  /// The encoded bytes of the number at the start of `bytes`.
  ByteSpan varint(ByteSpan bytes, size_t most) const {
    size_t length = 0;
    while (length < bytes.size() && length < most && is_continued(bytes[length])) ++length;
    if (length >= bytes.size() || length >= most) fail("a number that ends", bytes.data());
    return bytes.first(length + 1);
  }

  static uint64_t value(ByteSpan varint) {
    uint64_t result = 0;
    for (size_t i = 0; i < varint.size(); ++i) result |= (std::to_integer<uint64_t>(varint[i]) & 0x7f) << (7 * i);
    return result;
  }

 private:
  ByteSpan take(uint64_t size, const char* expected) {
    if (size > rest_.size()) fail(expected, rest_.data());
    const ByteSpan taken = rest_.first(static_cast<size_t>(size));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }

  uint64_t take_number(size_t most) { return value(take(varint(rest_, most).size(), "a number")); }

  void read_tag() {
    const std::byte* at = rest_.data();
    const uint64_t tag = take_number(most_tag_bytes);
    number = static_cast<uint32_t>(tag >> 3);
    type = static_cast<WireType>(tag & 7);
    if (number == 0 || tag > UINT32_MAX || (tag & 7) > 5) fail("a field's number and type", at);
  }

  void read_payload() {
    if (type == WireType::varint) {
      payload = take(varint(rest_, most_varint_bytes).size(), "a number");
    } else if (type == WireType::delimited) {
      const uint64_t size = take_number(most_varint_bytes);
      payload = take(size, "as many bytes as declared");
    } else if (type == WireType::group_end) {
      fail("a field, not the end of a group,", rest_.data());
    } else {
      payload = take(type == WireType::fixed32 ? 4 : 8, "a number of fixed size");
    }
  }

  /// Skips a group, a deprecated protobuf encoding.
  void skip_group() {
    const uint32_t group = number;
    std::vector<uint32_t> open{number};
    while (!open.empty()) {
      const std::byte* at = rest_.data();
      if (rest_.empty()) fail("the end of a group", at);
      read_tag();
      if (type == WireType::group_begin) {
        if (open.size() >= most_nested_groups) fail("groups in at most 100 levels", at);
        open.push_back(number);
      } else if (type == WireType::group_end) {
        if (number != open.back()) fail("the end of the group that is open", at);
        open.pop_back();
      } else {
        read_payload();
      }
    }
    number = group;
    type = WireType::group_begin;
  }

  ByteSpan rest_;
  const std::byte* start_;
};

}  // namespace

/// Parses one message into the reader's lists.
class ExampleReader::Parser {
 public:
  explicit Parser(ExampleReader& out) : out_(out) {}

  void example(WireReader wire) {
    while (wire.next()) {
      if (wire.is(1, WireType::delimited)) features(wire.inside());
    }
  }

 private:
  using Kind = ExampleFeature::Kind;

  void features(WireReader wire) {
    while (wire.next()) {
      if (wire.is(1, WireType::delimited)) entry(wire.inside());
    }
  }

  void entry(WireReader wire) {
    if (out_.features_.size() == most_features)
      wire.fail("at most 1,048,576 features, found one more", wire.position());
    ExampleFeature feature;
    feature.begin = feature.end = out_.pieces_.size();
    while (wire.next()) {
      if (wire.is(1, WireType::delimited)) {
        feature.name = as_text(wire.payload);
        if (!is_utf8(feature.name)) wire.fail("a feature's name as UTF-8 text", wire.payload.data());
      } else if (wire.is(2, WireType::delimited)) {
        value(wire.inside(), feature);
      }
    }
    out_.features_.push_back(feature);
  }

  void value(WireReader wire, ExampleFeature& feature) {
    while (wire.next()) {
      if (wire.type != WireType::delimited || wire.number > 3) continue;
      const auto kind = static_cast<Kind>(wire.number);
      if (kind != feature.kind) {  // one of three kinds (oneof): a new kind replaces earlier values
        out_.pieces_.resize(feature.begin);
        feature.count = 0;
        feature.kind = kind;
      }
      list(wire.inside(), feature);
      feature.end = out_.pieces_.size();
    }
  }

  void list(WireReader wire, ExampleFeature& feature) {
    while (wire.next()) {
      if (wire.number != 1) continue;
      const size_t count = values_in(wire, feature.kind);
      if (count == 0) continue;
      feature.count += count;
      out_.pieces_.push_back(wire.payload);
    }
  }

  /// Number of values that the field adds to a list of this kind.
  static size_t values_in(const WireReader& wire, Kind kind) {
    const bool packed = wire.type == WireType::delimited;
    if (kind == Kind::bytes) return packed ? 1 : 0;
    if (kind == Kind::floats) {
      if (packed && wire.payload.size() % 4 != 0) wire.fail("floats of four bytes", wire.payload.data());
      return packed || wire.type == WireType::fixed32 ? wire.payload.size() / 4 : 0;
    }
    if (!packed) return wire.type == WireType::varint ? 1 : 0;
    size_t count = 0;
    for (ByteSpan rest = wire.payload; !rest.empty(); ++count)
      rest = rest.subspan(wire.varint(rest, most_varint_bytes).size());
    return count;
  }

  ExampleReader& out_;
};

void ExampleReader::parse(ByteSpan message) {
  features_.clear();
  pieces_.clear();
  Parser(*this).example(WireReader(message, message.data()));
  // The last feature of each name moves to the front of its equals, and unique keeps it.
  std::reverse(features_.begin(), features_.end());
  std::ranges::stable_sort(features_, {}, &ExampleFeature::name);
  const auto same_name = [](const ExampleFeature& a, const ExampleFeature& b) { return a.name == b.name; };
  features_.erase(std::unique(features_.begin(), features_.end(), same_name), features_.end());
}

const ExampleFeature* ExampleReader::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(features_, name, {}, &ExampleFeature::name);
  return found != features_.end() && found->name == name ? &*found : nullptr;
}

void ExampleReader::copy_floats(const ExampleFeature& feature, std::byte* out) const {
  for (const ByteSpan piece : pieces(feature)) out = std::ranges::copy(piece, out).out;
}

void ExampleReader::copy_int64s(const ExampleFeature& feature, std::byte* out) const {
  for (const ByteSpan piece : pieces(feature)) {
    for (size_t i = 0; i < piece.size();) {
      uint64_t value = std::to_integer<uint64_t>(piece[i]) & 0x7f;
      for (unsigned shift = 7; is_continued(piece[i++]); shift += 7)
        value |= (std::to_integer<uint64_t>(piece[i]) & 0x7f) << shift;
      std::memcpy(out, &value, sizeof(value));
      out += sizeof(value);
    }
  }
}

namespace {

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void append_delimited(std::string& out, uint32_t number, std::string_view payload) {
  append_varint(out, number << 3 | static_cast<uint32_t>(WireType::delimited));
  append_varint(out, payload.size());
  out += payload;
}

}  // namespace

void ExampleWriter::add(std::string_view name, int kind, const std::string& list) {
  auto& [key, value] = features_.emplace_back(name, std::string());
  append_delimited(value, static_cast<uint32_t>(kind), list);
}

void ExampleWriter::add_bytes(std::string_view name, std::span<const ByteSpan> values) {
  std::string list;
  for (const ByteSpan value : values) append_delimited(list, 1, as_text(value));
  add(name, 1, list);
}

void ExampleWriter::add_floats(std::string_view name, std::span<const float> values) {
  std::string list;
  if (!values.empty()) append_delimited(list, 1, as_text(std::as_bytes(values)));
  add(name, 2, list);
}

void ExampleWriter::add_int64s(std::string_view name, std::span<const int64_t> values) {
  std::string packed, list;
  for (const int64_t value : values) append_varint(packed, static_cast<uint64_t>(value));
  if (!values.empty()) append_delimited(list, 1, packed);
  add(name, 3, list);
}

std::string ExampleWriter::take() {
  std::ranges::sort(features_);
  std::string entries, entry, message;
  const std::string* last = nullptr;
  for (const auto& [name, value] : features_) {
    TORCH_CHECK_VALUE(is_utf8(name), "tf.train.Example: expected a feature's name as UTF-8 text, got ", printable(name),
                      ".");
    TORCH_CHECK_VALUE(!last || *last != name, "tf.train.Example: two features have the name ", printable(name),
                      ". Rename one of them.");
    last = &name;
    entry.clear();
    append_delimited(entry, 1, name);
    append_delimited(entry, 2, value);
    append_delimited(entries, 1, entry);
  }
  append_delimited(message, 1, entries);
  features_.clear();
  TORCH_CHECK_VALUE(message.size() <= INT32_MAX, "tf.train.Example: the message would have ", message.size(),
                    " bytes, but protobuf supports less than 2 GiB. Split the sample.");
  return message;
}

}  // namespace bellows::io
