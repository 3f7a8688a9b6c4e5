#include "bellows/data/formats/table_files.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <cstring>
#include <memory>
#include <utility>

#include "bellows/data/formats/new_folder.h"
#include "bellows/io/bytes.h"
#include "bellows/io/tables/number_text.h"

namespace bellows::data {

PictureFolder::PictureFolder(const std::string& folder, const std::string& table) : folder_(folder) {
  const size_t slash = table.rfind('/');
  if (folder_.empty()) folder_ = slash == std::string::npos ? "." : table.substr(0, slash + 1);
  if (!folder_.ends_with('/')) folder_ += '/';
}

void PictureFolder::add(std::string_view path, Sample& sample) const {
  while (path.starts_with("./")) path.remove_prefix(2);
  TORCH_CHECK_VALUE(stays_inside(path), "expected the path of an image inside ", folder_, ", found ",
                    io::printable(path, 200),
                    ". Set image_folder to the folder in which the paths start. Paths must not contain \"..\".");
  auto map = std::make_shared<const MappedFile>(folder_ + std::string(path));
  sample.fields.push_back({.name = "image", .bytes = map->bytes()});
  if (!sample.owner) {
    sample.owner = std::move(map);
  } else {  // the source does not keep the table mapped
    sample.owner = std::make_shared<const std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>>(
        std::move(sample.owner), std::move(map));
  }
}

namespace {

template <class T>
T load_value(const std::byte* at) {
  T value{};
  std::memcpy(&value, at, sizeof(value));
  return value;
}

}  // namespace

std::string number_text(c10::ScalarType dtype, const std::byte* value) {
  switch (dtype) {
    case c10::kByte:
      return std::to_string(load_value<uint8_t>(value));
    case c10::kChar:
      return std::to_string(load_value<int8_t>(value));
    case c10::kUInt16:
      return std::to_string(load_value<uint16_t>(value));
    case c10::kShort:
      return std::to_string(load_value<int16_t>(value));
    case c10::kUInt32:
      return std::to_string(load_value<uint32_t>(value));
    case c10::kInt:
      return std::to_string(load_value<int32_t>(value));
    case c10::kUInt64:
      return std::to_string(load_value<uint64_t>(value));
    case c10::kLong:
      return std::to_string(load_value<int64_t>(value));
    case c10::kHalf:
      return io::float_text(static_cast<float>(load_value<c10::Half>(value)));
    case c10::kBFloat16:
      return io::float_text(static_cast<float>(load_value<c10::BFloat16>(value)));
    case c10::kFloat:
      return io::float_text(load_value<float>(value));
    case c10::kDouble:
      return io::float_text(load_value<double>(value));
    default:
      return "";
  }
}

void TextWriter::write(std::string_view text) {
  waiting_ += text;
  if (waiting_.size() < 1 << 20) return;
  state_.run("write", [&] { file_.write(waiting_); });
  waiting_.clear();
}

void TextWriter::commit() {
  state_.run("close", [&] {
    file_.write(waiting_);
    file_.commit();
  });
}

}  // namespace bellows::data
