#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/data/source.h"
#include "bellows/io/bytes.h"
#include "bellows/system/file.h"

namespace bellows::data {

/// A file that tools/goldens/records.py wrote with the original package.
inline std::string golden(const std::string& name) {
  return BELLOWS_SOURCE_DIR "/tests/goldens/interop/records/" + name;
}
inline nlohmann::json golden_json(const std::string& name) {
  return nlohmann::json::parse(read_text_file(golden(name)));
}

inline std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

/// A test with a folder of its own, or the one that tools/goldens/records.py --verify reads afterwards.
struct RecordsTest : testing::Test {
  RecordsTest() {
    const char* kept = std::getenv("BELLOWS_INTEROP_OUT");
    keep = kept != nullptr;
    std::string pattern = (std::filesystem::temp_directory_path() / "bellows_records_XXXXXX").string();
    folder = keep ? std::string(kept) : std::string(mkdtemp(pattern.data()));
  }
  ~RecordsTest() override {
    if (!keep) std::filesystem::remove_all(folder);
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }
  /// A copy of a golden in the folder.
  std::string copy(const std::string& name, const std::string& as) const {
    std::filesystem::copy_file(golden(name), path(as), std::filesystem::copy_options::overwrite_existing);
    return path(as);
  }

  std::filesystem::path folder;
  bool keep = false;
};

/// Without write_text_file's fsync, which thousands of small files do not need.
inline void put(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// The message of the c10::ValueError that `body` throws; fails the test when it throws none.
template <class F>
std::string value_error(const F& body) {
  try {
    body();
  } catch (const c10::ValueError& error) {
    return user_message(error);
  }
  ADD_FAILURE() << "expected c10::ValueError";
  return "";
}

/// All that a sample holds, as one string.
inline std::string content(const Sample& sample) {
  std::string text = std::string(sample.key) + "\n";
  for (const Field& field : sample.fields) {
    text += field.name;
    if (field.is_array) text += c10::str(" ", c10::toString(field.dtype), field.sizes);
    text += ":" + std::string(io::as_text(field.bytes)) + "\n";
  }
  return text;
}

inline std::vector<std::string> contents(const Source& source) {
  std::vector<std::string> result;
  for (int64_t i = 0; i < source.size(); ++i) result.push_back(content(source.read(i)));
  return result;
}

/// The one value of a scalar array.
template <class T>
T scalar(const Field* field) {
  T value{};
  EXPECT_TRUE(field && field->is_array && field->sizes.empty() && field->bytes.size() == sizeof(T));
  if (field && field->bytes.size() == sizeof(T)) std::memcpy(&value, field->bytes.data(), sizeof(T));
  return value;
}

/// The values of an array.
template <class T>
std::vector<T> values(const Field* field) {
  EXPECT_TRUE(field && field->is_array);
  std::vector<T> result(field ? field->bytes.size() / sizeof(T) : 0);
  if (!result.empty()) std::memcpy(result.data(), field->bytes.data(), field->bytes.size());
  return result;
}

/// Every bit of the file flipped, one after the other.
template <class Visit>
void for_each_flip(const std::string& file, const Visit& visit) {
  for (size_t bit = 0; bit < file.size() * 8; ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    visit(flipped, bit);
  }
}

}  // namespace bellows::data
