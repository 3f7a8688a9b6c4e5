#pragma once

#include <random>

#include "bellows/io/records/pack.h"
#include "tests/io/support.h"

namespace bellows::io::pack_testing {

/// A sample that owns what it holds.
struct Part {
  std::string name, bytes;
  bool is_array = false;
  c10::ScalarType dtype = c10::ScalarType::Byte;
  std::vector<int64_t> sizes;
  bool operator==(const Part&) const = default;
};
struct Item {
  std::string key;
  std::vector<Part> parts;
  bool operator==(const Item&) const = default;
};
using Items = std::vector<Item>;

inline void add(PackWriter& writer, const Item& item) {
  std::vector<PackValue> values;
  for (const Part& part : item.parts)
    values.push_back({part.name, as_bytes(part.bytes), part.is_array, part.dtype, part.sizes});
  writer.add(item.key, values);
}

inline Item read(const PackReader& reader, int64_t index) {
  const PackRecord record = reader.record(index);
  Item item{std::string(record.key()), {}};
  for (size_t k = 0; k < record.size(); ++k) {
    const PackRecord::Item found = record.item(k);
    Part part{found.field->name, std::string(as_text(found.bytes)), found.field->is_array, found.field->dtype,
              found.field->shape};
    for (size_t i = 0; i < found.shape.size(); i += 8)
      part.sizes.push_back(static_cast<int64_t>(load_little<uint64_t>(found.shape, i)));
    item.parts.push_back(std::move(part));
  }
  return item;
}

inline Items read_all(const PackReader& reader) {
  Items items;
  for (int64_t i = 0; i < reader.size(); ++i) items.push_back(read(reader, i));
  return items;
}

inline Part file_part(const std::string& name, size_t bytes, char fill) {
  return {name, std::string(bytes, fill), false, c10::ScalarType::Byte, {}};
}
inline Part array_part(const std::string& name, c10::ScalarType dtype, std::vector<int64_t> sizes) {
  size_t bytes = c10::elementSize(dtype);
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  std::string content(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) content[i] = static_cast<char>(31 * i + bytes);
  return {name, content, true, dtype, std::move(sizes)};
}

/// All kinds of fields, in samples of unlike sizes.
inline Items awkward() {
  using enum c10::ScalarType;
  return {{"dir/a", {file_part("png", 300, 'p'), file_part("cls", 1, '7')}},
          {"", {array_part("image", Byte, {3, 5, 3}), array_part("label", Long, {})}},
          {"dir/b", {array_part("image", Byte, {4, 7, 3}), array_part("label", Long, {}), file_part("json", 0, ' ')}},
          {"nothing", {}},
          {"empty", {array_part("x", Float, {0, 3}), array_part("x2", BFloat16, {2, 1})}},
          {"large", {file_part("jpg", 9000, 'j'), array_part("x", Float, {5})}},
          {"dir/c", {file_part("png", 2, 'q'), array_part("image", Byte, {3, 5, 3})}}};
}

inline std::string slurp(const std::string& path) {
  return read_text_file(path);
}

inline std::string write_pack(const std::string& path, const Items& items, PackWriterOptions options = {}) {
  PackWriter writer(path, options);
  for (const Item& item : items) add(writer, item);
  writer.close();
  return slurp(path);
}

inline Items many(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Items items;
  for (size_t i = 0; i < count; ++i) {
    Item item{"key" + std::to_string(i), {file_part("jpg", random() % 900, static_cast<char>('a' + i % 26))}};
    if (i % 3 == 0) item.parts.push_back(array_part("x", c10::ScalarType::Int, {static_cast<int64_t>(random() % 9)}));
    if (i % 50 == 7) item.parts.push_back(file_part("big", 10'000, 'b'));
    if (i % 40 == 9) item.parts.push_back(file_part("rare" + std::to_string(i), 3, 'r'));
    items.push_back(std::move(item));
  }
  return items;
}

inline const PackWriterOptions small_pages{.page_bytes = 4096};

}  // namespace bellows::io::pack_testing
