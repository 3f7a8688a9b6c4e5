#include "bellows/io/tensors/safetensors_header.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_set>

namespace bellows::io {

namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the official reader's limit

struct DtypeBits {
  std::string_view name;
  int bits;
};

/// In the order of the official enumeration, which the writer uses for sorting.
constexpr std::array kSafetensorsDtypes{
    DtypeBits{"BOOL", 8},    DtypeBits{"F4", 4},          DtypeBits{"F6_E2M3", 6},     DtypeBits{"F6_E3M2", 6},
    DtypeBits{"U8", 8},      DtypeBits{"I8", 8},          DtypeBits{"F8_E5M2", 8},     DtypeBits{"F8_E4M3", 8},
    DtypeBits{"F8_E8M0", 8}, DtypeBits{"F8_E4M3FNUZ", 8}, DtypeBits{"F8_E5M2FNUZ", 8}, DtypeBits{"I16", 16},
    DtypeBits{"U16", 16},    DtypeBits{"F16", 16},        DtypeBits{"BF16", 16},       DtypeBits{"I32", 32},
    DtypeBits{"U32", 32},    DtypeBits{"F32", 32},        DtypeBits{"C64", 64},        DtypeBits{"F64", 64},
    DtypeBits{"I64", 64},    DtypeBits{"U64", 64},
};

size_t dtype_rank(std::string_view name) {
  const auto* row = std::find_if(kSafetensorsDtypes.begin(), kSafetensorsDtypes.end(),
                                 [&](const DtypeBits& d) { return d.name == name; });
  return static_cast<size_t>(row - kSafetensorsDtypes.begin());
}

using Json = nlohmann::json;

/// Processes the header during parsing, so that memory use is bounded by the file's size: {name: {field: value}}.
class HeaderHandler : public nlohmann::json_sax<Json> {
 public:
  HeaderHandler(SafetensorsHeader& header, std::string_view where) : header_(header), where_(where) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t) override { return value("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a number with a fraction"); }
  bool binary(binary_t&) override { return value("binary data"); }

  bool number_unsigned(number_unsigned_t number) override {
    if (!in_array_) return value("a number");
    if (field_ == "data_offsets") {
      offsets_.push_back(number);
    } else {
      check(number <= INT64_MAX, "a size that fits into 63 bits", std::to_string(number));
      entry().shape.push_back(static_cast<int64_t>(number));
    }
    check(offsets_.size() <= 2 && (header_.entries.empty() || entry().shape.size() <= 64),
          "two offsets and at most 64 sizes", "more");
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ == 2 && name_ == "__metadata__") {
      header_.metadata.emplace_back(field_, text);
      return true;
    }
    if (depth_ != 2 || in_array_ || field_ != "dtype") return value("a string");
    check(safetensors_bits(text) > 0, "a dtype of the format", printable(text));
    entry().dtype = text;
    return true;
  }

  bool start_object(std::size_t) override {
    check(depth_ < 2 && !in_array_, "at most one object per tensor", "a nested object");
    if (++depth_ == 2) {
      fields_.clear();
      offsets_.clear();
      if (name_ != "__metadata__") header_.entries.push_back({.name = name_, .dtype = {}, .shape = {}});
    }
    return true;
  }

  bool key(string_t& text) override {
    const bool is_new = depth_ == 1 ? names_.insert(text).second : fields_.insert(text).second;
    (depth_ == 1 ? name_ : field_) = text;
    check(is_new, "each name only once", "a repeated name");
    return true;
  }

  bool end_object() override {
    if (--depth_ != 1 || name_ == "__metadata__") return true;
    field_.clear();
    check(fields_.contains("dtype") && fields_.contains("shape") && offsets_.size() == 2,
          "the fields dtype, shape and data_offsets", "some of them missing");
    entry().begin = offsets_[0];
    entry().end = offsets_[1];
    return true;
  }

  bool start_array(std::size_t) override {
    const bool expected =
        depth_ == 2 && !in_array_ && name_ != "__metadata__" && (field_ == "shape" || field_ == "data_offsets");
    if (!expected) return value("an array");
    in_array_ = true;
    return true;
  }

  bool end_array() override {
    in_array_ = false;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    TORCH_CHECK_VALUE(false, where_, ": the header is not valid JSON at byte ", 7 + position, ": the file is corrupt.");
  }

 private:
  SafetensorsEntry& entry() { return header_.entries.back(); }

  /// Handles a value where none is expected. Unknown fields of a tensor are skipped, as in the official reader.
  bool value(const char* found) const {
    const bool known = field_ == "dtype" || field_ == "shape" || field_ == "data_offsets";
    check(depth_ == 2 && !in_array_ && !known && name_ != "__metadata__", "a field of the format", found);
    return true;
  }

  void check(bool good, const char* expected, const std::string& found) const {
    TORCH_CHECK_VALUE(good, where_, ": header, ", printable(name_, 200),
                      field_.empty() ? "" : ", " + printable(field_, 100), ": expected ", expected, ", found ", found,
                      ".");
  }

  SafetensorsHeader& header_;
  std::string_view where_;
  int depth_ = 0;
  bool in_array_ = false;
  std::string name_, field_;
  std::vector<uint64_t> offsets_;
  std::unordered_set<std::string> names_, fields_;
};

/// Bytes of the tensor by its shape and dtype; throws if they overflow or are not whole bytes.
uint64_t shape_bytes(const SafetensorsEntry& entry, std::string_view where) {
  uint64_t bits = static_cast<uint64_t>(safetensors_bits(entry.dtype));
  bool overflow = false;
  for (const int64_t size : entry.shape) overflow |= __builtin_mul_overflow(bits, static_cast<uint64_t>(size), &bits);
  TORCH_CHECK_VALUE(!overflow && bits % 8 == 0, where, ": the shape of ", printable(entry.name, 200),
                    " does not correspond to a whole number of bytes below 2^61.");
  return bits / 8;
}

}  // namespace

int safetensors_bits(std::string_view dtype) {
  const size_t rank = dtype_rank(dtype);
  return rank < kSafetensorsDtypes.size() ? kSafetensorsDtypes[rank].bits : 0;
}

bool safetensors_before(const SafetensorsEntry& a, const SafetensorsEntry& b) {
  const size_t rank_a = dtype_rank(a.dtype), rank_b = dtype_rank(b.dtype);
  return rank_a != rank_b ? rank_a > rank_b : a.name < b.name;
}

uint64_t safetensors_header_end(ByteSpan start, uint64_t file_bytes, std::string_view where) {
  TORCH_CHECK_VALUE(start.size() >= 9, where, ": expected a safetensors file, found ", describe_content(start), " (",
                    file_bytes, " bytes).");
  const uint64_t length = load_little<uint64_t>(start);
  TORCH_CHECK_VALUE(static_cast<char>(start[8]) == '{' && length <= kMaxHeaderBytes, where,
                    ": expected a safetensors file (a header of at most ", kMaxHeaderBytes,
                    " bytes that starts with a brace), found ", describe_content(start), ".");
  TORCH_CHECK_VALUE(length <= file_bytes - 8, where, ": truncated: the header takes ", length,
                    " bytes from byte 8, but the file has ", file_bytes, ".");
  return 8 + length;
}

SafetensorsHeader parse_safetensors_header(ByteSpan bytes, uint64_t file_bytes, std::string_view where) {
  const uint64_t start = safetensors_header_end(bytes, file_bytes, where), data = file_bytes - start;
  SafetensorsHeader header;
  HeaderHandler handler(header, where);
  const std::string_view text = as_text(bytes.subspan(8, start - 8));
  Json::sax_parse(text.begin(), text.end(), &handler);
  const auto by_place = [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  };
  std::stable_sort(header.entries.begin(), header.entries.end(), by_place);
  uint64_t at = 0;
  for (SafetensorsEntry& entry : header.entries) {
    TORCH_CHECK_VALUE(entry.begin == at && entry.end >= at, where, ": the data of ", printable(entry.name, 200),
                      " should be at bytes ", entry.begin, " to ", entry.end, ", but the data before it ends at byte ",
                      at, ": the header is corrupt.");
    TORCH_CHECK_VALUE(entry.end <= data, where, ": truncated: ", printable(entry.name, 200), " ends at byte ",
                      start + entry.end, ", but the file has ", file_bytes, ".");
    const uint64_t expected = shape_bytes(entry, where);
    TORCH_CHECK_VALUE(expected == entry.end - entry.begin, where, ": ", printable(entry.name, 200), " has ",
                      entry.end - entry.begin, " bytes, but its shape and dtype ", entry.dtype, " need ", expected,
                      ": the header is corrupt.");
    at = entry.end;
    entry.begin += start;
    entry.end += start;
  }
  TORCH_CHECK_VALUE(at == data, where, ": the tensors end at byte ", start + at, ", but the file ends at byte ",
                    file_bytes, ": ", data - at, " bytes belong to no tensor.");
  return header;
}

std::string make_safetensors_header(const std::vector<SafetensorsEntry>& entries, const SafetensorsMetadata& metadata) {
  const auto quoted = [](const std::string& text) {
    try {
      return Json(text).dump();
    } catch (const Json::exception&) {
      TORCH_CHECK_VALUE(false, "save_safetensors: expected UTF-8 text, found ", printable(text), ".");
    }
  };
  std::string text = "{";
  if (!metadata.empty()) {
    text += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata)
      text += (text.back() == '{' ? "" : ",") + quoted(key) + ":" + quoted(value);
    text += "}";
  }
  for (const SafetensorsEntry& entry : entries) {
    text += (text.size() > 1 ? "," : "") + quoted(entry.name) + ":{\"dtype\":\"" + entry.dtype + "\",\"shape\":[";
    for (const int64_t size : entry.shape) text += (text.back() == '[' ? "" : ",") + std::to_string(size);
    text += "],\"data_offsets\":[" + std::to_string(entry.begin) + "," + std::to_string(entry.end) + "]}";
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  TORCH_CHECK_VALUE(text.size() <= kMaxHeaderBytes, "save_safetensors: names and metadata need ", text.size(),
                    " bytes, but the format allows at most ", kMaxHeaderBytes, ".");
  std::string out;
  append_little<uint64_t>(out, text.size());
  return out + text;
}

}  // namespace bellows::io
