#include "bellows/data/formats/example_fields.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <limits>

#include "bellows/core/round_up.h"
#include "bellows/data/picture.h"
#include "bellows/io/bytes.h"

namespace bellows::data {

namespace {

using c10::ScalarType;

struct NamedType {
  std::string_view name;
  ScalarType dtype;
};

constexpr std::array named_types{NamedType{"uint8", ScalarType::Byte},
                                 NamedType{"int8", ScalarType::Char},
                                 NamedType{"int16", ScalarType::Short},
                                 NamedType{"int32", ScalarType::Int},
                                 NamedType{"int64", ScalarType::Long},
                                 NamedType{"uint16", ScalarType::UInt16},
                                 NamedType{"uint32", ScalarType::UInt32},
                                 NamedType{"uint64", ScalarType::UInt64},
                                 NamedType{"bool", ScalarType::Bool},
                                 NamedType{"float16", ScalarType::Half},
                                 NamedType{"bfloat16", ScalarType::BFloat16},
                                 NamedType{"float32", ScalarType::Float},
                                 NamedType{"float64", ScalarType::Double},
                                 NamedType{"complex64", ScalarType::ComplexFloat},
                                 NamedType{"complex128", ScalarType::ComplexDouble}};

/// Calls `visit` with a zero of the type. Returns false for other types.
template <class Visit>
bool with_integer(ScalarType dtype, const Visit& visit) {
  switch (dtype) {
    case ScalarType::Byte:
      visit(uint8_t{});
      return true;
    case ScalarType::Char:
      visit(int8_t{});
      return true;
    case ScalarType::Short:
      visit(int16_t{});
      return true;
    case ScalarType::Int:
      visit(int32_t{});
      return true;
    case ScalarType::Long:
      visit(int64_t{});
      return true;
    case ScalarType::UInt16:
      visit(uint16_t{});
      return true;
    case ScalarType::UInt32:
      visit(uint32_t{});
      return true;
    case ScalarType::Bool:
      visit(bool{});
      return true;
    default:
      return false;
  }
}

template <class T>
T load_element(const std::byte* at) {
  if constexpr (std::is_same_v<T, bool>) {
    return *at != std::byte{0};
  } else {
    T value{};
    std::memcpy(&value, at, sizeof(T));
    return value;
  }
}

/// Parses a size and multiplies `values` by it; returns false on overflow.
bool parse_size(std::string_view digits, int64_t& size, size_t& values) {
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  return error == std::errc() && rest == digits.data() + digits.size() && size >= 0 &&
         !__builtin_mul_overflow(values, static_cast<size_t>(size), &values);
}

}  // namespace

ExampleStore example_store(ScalarType dtype) {
  if (dtype == ScalarType::Float) return ExampleStore::floats;
  // Stored as int64, an image's bytes would be half as large again and slow to read.
  return is_widened(dtype) && dtype != ScalarType::Byte ? ExampleStore::int64s : ExampleStore::bytes;
}

bool is_widened(ScalarType dtype) {
  return with_integer(dtype, [](auto) {});
}

ExampleArray parse_example_array(std::string_view note, std::vector<int64_t>& sizes) {
  const auto fail = [&] {
    TORCH_CHECK_VALUE(false, "feature \"", example_arrays_feature, "\": expected DTYPE[SIZES] NAME, found ",
                      io::printable(note), ".");
  };
  ExampleArray array;
  const size_t open = note.find('['), close = note.find("] ");
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) fail();
  const auto type = std::ranges::find(named_types, note.substr(0, open), &NamedType::name);
  if (type == named_types.end()) fail();
  array.dtype = type->dtype;
  array.name = note.substr(close + 2);
  array.first_size = sizes.size();
  std::string_view list = note.substr(open + 1, close - open - 1);
  for (bool more = !list.empty(); more; ++array.rank) {
    const std::string_view digits = list.substr(0, list.find(','));
    if (!parse_size(digits, sizes.emplace_back(), array.values)) fail();
    more = digits.size() < list.size();
    list.remove_prefix(more ? digits.size() + 1 : list.size());
  }
  return array;
}

std::optional<std::string> format_example_array(const Field& array, std::string_view name) {
  const bool is_list = array.sizes.empty() || (array.sizes.size() == 1 && array.sizes[0] != 1);
  if (is_list && (array.dtype == ScalarType::Long || array.dtype == ScalarType::Float)) return {};
  const auto type = std::ranges::find(named_types, array.dtype, &NamedType::dtype);
  TORCH_CHECK_VALUE(type != named_types.end(), "arrays of ", c10::toString(array.dtype),
                    " cannot be written. Convert them to another type.");
  std::string sizes;
  for (const int64_t size : array.sizes) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
  return c10::str(type->name, "[", sizes, "] ", name);
}

std::vector<int64_t> widen_integers(const Field& array) {
  std::vector<int64_t> values;
  with_integer(array.dtype, [&](auto zero) {
    values.reserve(array.bytes.size() / sizeof(zero));
    for (size_t i = 0; i < array.bytes.size(); i += sizeof(zero))
      values.push_back(load_element<decltype(zero)>(array.bytes.data() + i));
  });
  return values;
}

void narrow_integers(std::span<const std::byte> values, ScalarType dtype, std::byte* out) {
  with_integer(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < values.size(); i += sizeof(int64_t), out += sizeof(T)) {
      const auto wide = load_element<int64_t>(values.data() + i);
      const auto value = static_cast<T>(wide);
      TORCH_CHECK_VALUE(static_cast<int64_t>(value) == wide, "expected numbers that fit ", c10::toString(dtype),
                        ", found ", wide, ".");
      std::memcpy(out, &value, sizeof(T));
    }
  });
}

namespace {

using FeatureKind = io::ExampleFeature::Kind;

class ExampleFields {
 public:
  /// Params: file – the bytes that the message lies in
  ExampleFields(ExampleWorkspace& workspace, const TfrecordOptions& options, std::string_view file, Sample& sample)
      : example_(workspace.example),
        arrays_(workspace.arrays),
        options_(options),
        file_(io::as_bytes(file)),
        sample_(sample) {}

  void make() {
    read_notes();
    reserve();
    for (const io::ExampleFeature& feature : example_.features()) add(feature);
    for (const auto& [feature, field] : options_.fields) {
      TORCH_CHECK_VALUE(field.empty() || std::ranges::count(sample_.fields, field, &Field::name) <= 1,
                        "two features would become the field \"", field, "\". Rename the feature \"", feature,
                        "\", or leave out one of the features.");
    }
  }

 private:
  bool is_notes(const io::ExampleFeature& feature) const {
    return feature.name == example_arrays_feature && feature.kind == FeatureKind::bytes;
  }

  void read_notes() {
    arrays_.clear();
    const io::ExampleFeature* notes = example_.find(example_arrays_feature);
    if (!notes || !is_notes(*notes)) return;
    for (const io::ByteSpan note : example_.pieces(*notes))
      arrays_.push_back(parse_example_array(io::as_text(note), sample_.shapes));
    std::ranges::sort(arrays_, {}, &ExampleArray::name);
  }

  const ExampleArray* find_note(std::string_view name) const {
    const auto found = std::ranges::lower_bound(arrays_, name, {}, &ExampleArray::name);
    return found != arrays_.end() && found->name == name ? &*found : nullptr;
  }

  /// Reserves all memory that views may point to, so that nothing moves afterwards.
  void reserve() {
    constexpr size_t most_name_bytes = size_t{64} << 20;  // a small record can request long names many times
    size_t bytes = 0;
    for (const io::ExampleFeature& feature : example_.features()) {
      if (feature.kind == FeatureKind::bytes && feature.count > 1)
        bytes += feature.count * (field_name(feature).size() + 21);
      TORCH_CHECK_VALUE(bytes <= most_name_bytes || feature.kind != FeatureKind::bytes, "feature \"",
                        io::printable(feature.name), "\" has ", feature.count,
                        " byte strings, so the names of their fields would need more than 64 MiB.");
      if (feature.kind == FeatureKind::floats) bytes += feature.count * 4 + 8;
      if (feature.kind == FeatureKind::int64s) bytes += feature.count * 16 + 16;
    }
    sample_.buffer.resize(bytes);
    sample_.shapes.reserve(sample_.shapes.size() + example_.features().size());
  }

  std::byte* take(size_t bytes) {
    std::byte* taken = sample_.buffer.data() + taken_;
    taken_ += round_up(bytes, 8);
    return taken;
  }

  void add(const io::ExampleFeature& feature) {
    if (feature.kind == FeatureKind::none || is_notes(feature)) return;
    if (feature.name == example_key_feature && feature.kind == FeatureKind::bytes && feature.count == 1) {
      sample_.key = io::as_text(example_.pieces(feature)[0]);
      return;
    }
    const std::string_view name = field_name(feature);
    if (name.empty() && !feature.name.empty()) return;
    if (const ExampleArray* array = find_note(feature.name)) {
      add_noted(name, feature, *array);
    } else if (feature.kind == FeatureKind::bytes) {
      add_bytes(name, feature);
    } else {
      Field& field = add_array(name, feature, feature.kind == FeatureKind::floats ? c10::kFloat : c10::kLong);
      field.bytes = numbers(feature);
      if (feature.count != 1) field.sizes = sizes_from(append_size(feature.count), 1);
    }
  }

  std::string_view field_name(const io::ExampleFeature& feature) const {
    for (const auto& [from, to] : options_.fields) {
      if (from == feature.name) return to;
    }
    std::string_view name;
    if (feature.name == "image/class/label") name = "label";
    if (feature.name == "image/encoded" && feature.kind == FeatureKind::bytes && feature.count == 1)
      name = picture_name(example_.pieces(feature)[0], "image");
    return name.empty() || example_.find(name) ? feature.name : name;
  }

  void add_bytes(std::string_view name, const io::ExampleFeature& feature) {
    const auto values = example_.pieces(feature);
    for (size_t i = 0; i < values.size(); ++i) {
      Field& field = sample_.fields.emplace_back();
      field.name = values.size() == 1 ? name : numbered(name, i);
      field.bytes = values[i];
      field.offset = static_cast<uint64_t>(values[i].data() - file_.data());
    }
  }

  std::string_view numbered(std::string_view name, size_t number) {
    const std::string digits = "." + std::to_string(number);
    char* out = reinterpret_cast<char*>(sample_.buffer.data() + taken_);
    digits.copy(out + name.copy(out, name.size()), digits.size());
    taken_ += name.size() + digits.size();
    return {out, name.size() + digits.size()};
  }

  Field& add_array(std::string_view name, const io::ExampleFeature& feature, c10::ScalarType dtype) {
    const auto values = example_.pieces(feature);
    Field& field = sample_.fields.emplace_back();
    field.name = name;
    field.is_array = true;
    field.dtype = dtype;
    if (!values.empty()) field.offset = static_cast<uint64_t>(values[0].data() - file_.data());
    return field;
  }

  /// The values of a list of numbers in array form.
  io::ByteSpan numbers(const io::ExampleFeature& feature) {
    const auto pieces = example_.pieces(feature);
    if (feature.kind == FeatureKind::floats && pieces.size() == 1) return pieces[0];
    const size_t bytes = feature.count * (feature.kind == FeatureKind::floats ? 4 : 8);
    std::byte* out = take(bytes);
    if (feature.kind == FeatureKind::floats) {
      example_.copy_floats(feature, out);
    } else {
      example_.copy_int64s(feature, out);
    }
    return {out, bytes};
  }

  void add_noted(std::string_view name, const io::ExampleFeature& feature, const ExampleArray& array) {
    const ExampleStore store = example_store(array.dtype);
    const auto kind = store == ExampleStore::bytes    ? FeatureKind::bytes
                      : store == ExampleStore::floats ? FeatureKind::floats
                                                      : FeatureKind::int64s;
    const bool is_raw = kind == FeatureKind::bytes && feature.count == 1;
    const size_t width = is_raw ? c10::elementSize(array.dtype) : 1;
    const size_t found = is_raw ? example_.pieces(feature)[0].size() : feature.count;
    TORCH_CHECK_VALUE(feature.kind == kind && (is_raw || kind != FeatureKind::bytes) && found % width == 0 &&
                          found / width == array.values,
                      "feature \"", feature.name, "\" has different values than \"", example_arrays_feature,
                      "\" declares: ", array.values, " of ", c10::toString(array.dtype), ".");
    Field& field = add_array(name, feature, array.dtype);
    field.sizes = sizes_from(array.first_size, array.rank);
    field.bytes = is_raw ? example_.pieces(feature)[0] : numbers(feature);
    if (kind != FeatureKind::int64s || array.dtype == c10::kLong) return;
    const size_t bytes = feature.count * c10::elementSize(array.dtype);
    std::byte* out = take(bytes);
    narrow_integers(field.bytes, array.dtype, out);
    field.bytes = {out, bytes};
  }

  size_t append_size(size_t size) {
    sample_.shapes.push_back(static_cast<int64_t>(size));
    return sample_.shapes.size() - 1;
  }
  c10::IntArrayRef sizes_from(size_t first, size_t rank) const { return {sample_.shapes.data() + first, rank}; }

  const io::ExampleReader& example_;
  std::vector<ExampleArray>& arrays_;
  const TfrecordOptions& options_;
  io::ByteSpan file_;
  Sample& sample_;
  size_t taken_ = 0;  // used bytes of the sample's buffer
};

}  // namespace

void make_example_fields(ExampleWorkspace& workspace, const TfrecordOptions& options, std::string_view file,
                         Sample& sample) {
  ExampleFields(workspace, options, file, sample).make();
}

}  // namespace bellows::data
