#include "bellows/data/field_groups.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/data/fingerprint.h"
#include "bellows/data/formats/table_files.h"
#include "bellows/data/images/bad_image.h"
#include "bellows/data/picture.h"
#include "bellows/data/source_wrapper.h"
#include "bellows/io/bytes.h"
#include "bellows/io/images/image.h"
#include "bellows/io/tables/number_text.h"

namespace bellows::data {

namespace {

bool is_encoded_image(const Field& field) {
  return !field.is_array && !picture_name(field.bytes, "").empty();
}

/// The number in an array with one element or in a text; nothing for other fields.
std::optional<double> number_in(const Field& field) {
  if (!field.is_array) return io::parse_float(io::as_text(field.bytes));
  if (field.bytes.size() != c10::elementSize(field.dtype)) return std::nullopt;
  return io::parse_float(number_text(field.dtype, field.bytes.data()));
}

/// An array created for a sample. Fields point into it.
struct MadeArray {
  std::vector<std::byte> bytes;
  std::vector<int64_t> sizes;
  c10::ScalarType dtype = c10::ScalarType::Float;
};

/// Owner of a sample's created arrays and of its previous owner.
struct MadeArrays {
  std::vector<MadeArray> arrays;
  std::shared_ptr<const void> before;
};

void scale_to_nearest(MadeArray& image, int64_t height, int64_t width) {
  const int64_t old_height = image.sizes[0], old_width = image.sizes[1];
  if (height == old_height && width == old_width) return;
  const auto pixel = static_cast<int64_t>(image.bytes.size()) / (old_height * old_width);
  std::vector<std::byte> scaled(static_cast<size_t>(height * width * pixel));
  for (int64_t y = 0; y < height; ++y) {
    const int64_t from_y = y * old_height / height;
    for (int64_t x = 0; x < width; ++x) {
      const int64_t from_x = x * old_width / width;
      std::memcpy(scaled.data() + (y * width + x) * pixel, image.bytes.data() + (from_y * old_width + from_x) * pixel,
                  static_cast<size_t>(pixel));
    }
  }
  image.bytes = std::move(scaled);
  image.sizes[0] = height;
  image.sizes[1] = width;
}

MadeArray decoded(const FieldGroup& group, const Field& field) {
  const io::ImageInfo info = io::image_info(field.bytes);
  std::vector<uint8_t> pixels(static_cast<size_t>(info.bytes_as(io::ColorMode::keep)));
  io::decode_image_into(field.bytes, io::ColorMode::keep, pixels, "image");
  MadeArray image{.bytes = {}, .sizes = {info.height, info.width, info.channels}, .dtype = c10::ScalarType::Byte};
  const auto bytes = std::as_bytes(std::span(pixels));
  image.bytes.assign(bytes.begin(), bytes.end());
  if (group.height > 0) scale_to_nearest(image, group.height, group.width);
  if (group.mask && info.channels == 1) image.sizes.pop_back();
  return image;
}

class GroupedFields final : public SourceWrapper, public Derived {
 public:
  using Source::read;

  GroupedFields(SourcePtr source, std::vector<FieldGroup> groups)
      : SourceWrapper(std::move(source)), groups_(std::move(groups)) {
    TORCH_CHECK_VALUE(inner(), "group_fields: expected a source, got null.");
    std::set<std::string> names;
    for (const FieldGroup& group : groups_) {
      TORCH_CHECK_VALUE(!group.name.empty() && !group.fields.empty(), "group_fields: the group \"", group.name,
                        "\" needs a name and at least one field.");
      TORCH_CHECK_VALUE(names.insert(group.name).second, "group_fields: two groups are called \"", group.name, "\".");
      used_.insert(group.fields.begin(), group.fields.end());
    }
  }

  const SourcePtr& origin() const override { return inner(); }

  void read(int64_t index, Sample& sample) const override {
    inner()->read(index, sample);
    auto made = std::make_shared<MadeArrays>();
    made->arrays.reserve(groups_.size());
    std::vector<Field> fields;
    for (const FieldGroup& group : groups_) fields.push_back(field_of(group, sample, *made));
    for (const Field& field : sample.fields) {
      if (!used_.contains(field.name)) fields.push_back(field);
    }
    sample.fields = std::move(fields);
    made->before = std::move(sample.owner);
    sample.owner = std::move(made);
  }

 private:
  Field field_of(const FieldGroup& group, const Sample& sample, MadeArrays& made) const {
    const Field& first = member(group, group.fields.front(), sample);
    const bool single = group.fields.size() == 1;
    if (single && first.is_array && !first.sizes.empty()) {
      Field field = first;
      field.name = group.name;
      return field;
    }
    if (single && is_encoded_image(first)) {
      run_on_image(ImageStep::decode, sample, &first, [&] { made.arrays.push_back(decoded(group, first)); });
    } else {
      made.arrays.push_back(numbers(group, sample));
    }
    const MadeArray& array = made.arrays.back();
    return {.name = group.name,
            .bytes = array.bytes,
            .offset = first.offset,
            .is_array = true,
            .dtype = array.dtype,
            .sizes = array.sizes};
  }

  static const Field& member(const FieldGroup& group, const std::string& name, const Sample& sample) {
    const Field* field = sample.find(name);
    TORCH_CHECK_VALUE(field, group.name, ": ", sample.where(), " has no field \"", name, "\"; it contains ",
                      sample.field_names(), ".");
    return *field;
  }

  static MadeArray numbers(const FieldGroup& group, const Sample& sample) {
    MadeArray array{.bytes = std::vector<std::byte>(group.fields.size() * sizeof(float)),
                    .sizes = {static_cast<int64_t>(group.fields.size())}};
    for (size_t i = 0; i < group.fields.size(); ++i) {
      const Field& field = member(group, group.fields[i], sample);
      const std::optional<double> number = number_in(field);
      TORCH_CHECK_VALUE(number, group.name, ": ", sample.where(&field), ": expected a number, found ",
                        field.is_array ? c10::str("an array ", field.sizes)
                                       : io::printable(std::string(io::as_text(field.bytes)), 40),
                        ".");
      const auto value = static_cast<float>(*number);
      std::memcpy(array.bytes.data() + i * sizeof(float), &value, sizeof(value));
    }
    return array;
  }

  std::vector<FieldGroup> groups_;
  std::set<std::string, std::less<>> used_;
};

}  // namespace

SourcePtr group_fields(SourcePtr source, std::vector<FieldGroup> groups) {
  return std::make_shared<GroupedFields>(std::move(source), std::move(groups));
}

std::vector<std::string> number_fields(const Sample& sample, const std::vector<std::string>& except) {
  std::vector<std::string> names;
  for (const Field& field : sample.fields) {
    const bool left_out = std::ranges::find(except, field.name) != except.end();
    if (!left_out && number_in(field)) names.emplace_back(field.name);
  }
  return names;
}

}  // namespace bellows::data
