#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bellows/data/source.h"
#include "bellows/io/bytes.h"
#include "bellows/system/file.h"
#include "tests/data/support.h"

namespace bellows::data::testing {

inline const std::string kMdsGoldens = std::string(BELLOWS_SOURCE_DIR) + "/tests/goldens/interop/mds/";

inline std::string hex(io::ByteSpan bytes) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes)
    text += {digits[std::to_integer<int>(byte) >> 4], digits[std::to_integer<int>(byte) & 15]};
  return text;
}

/// NumPy's name of a type.
inline std::string numpy_name(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kBool:
      return "bool";
    case c10::kByte:
      return "uint8";
    case c10::kChar:
      return "int8";
    case c10::kUInt16:
      return "uint16";
    case c10::kShort:
      return "int16";
    case c10::kHalf:
      return "float16";
    case c10::kUInt32:
      return "uint32";
    case c10::kInt:
      return "int32";
    case c10::kFloat:
      return "float32";
    case c10::kUInt64:
      return "uint64";
    case c10::kLong:
      return "int64";
    case c10::kDouble:
      return "float64";
    case c10::kComplexFloat:
      return "complex64";
    default:
      return c10::toString(dtype);
  }
}

/// A field as the goldens' scripts describe it.
inline nlohmann::json described(const Field& field) {
  if (!field.is_array) return {{"bytes", hex(field.bytes)}};
  return {{"dtype", numpy_name(field.dtype)}, {"shape", field.sizes.vec()}, {"bytes", hex(field.bytes)}};
}

inline nlohmann::json described(const Sample& sample) {
  nlohmann::json result = nlohmann::json::object();
  for (const Field& field : sample.fields) result[std::string(field.name)] = described(field);
  return result;
}

/// All that distinguishes a sample, as one string.
inline std::string shown(const Sample& sample) {
  return std::string(sample.key) + described(sample).dump();
}

/// Where a test's files go: with BELLOWS_IO_OUT set, where the original package reads them afterwards.
class OutputFolder {
 public:
  OutputFolder() {
    if (const char* kept = std::getenv("BELLOWS_IO_OUT"))
      kept_ = kept;
    else
      temporary_ = std::make_unique<TemporaryFolder>();
  }
  std::string operator/(const std::string& name) const {
    return temporary_ ? *temporary_ / name : (std::filesystem::path(kept_) / name).string();
  }

 private:
  std::string kept_;
  std::unique_ptr<TemporaryFolder> temporary_;
};

/// Writes a file without waiting for the disk.
inline void put_file(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

/// Fills a file with other bytes, in place: what is mapped changes, too.
inline void overwrite(const std::string& path) {
  std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
  out << std::string(std::filesystem::file_size(path), 'x');
}

inline void copy_all(const Source& source, Sink& sink) {
  for (int64_t i = 0; i < source.size(); ++i) sink.write(source.read(i));
  sink.close();
}

/// A field that is an array; the values outlive it.
template <class T>
Field array_field(std::string_view name, const std::vector<T>& values, c10::ScalarType dtype,
                  c10::IntArrayRef sizes = {}) {
  Field field;
  field.name = name;
  field.bytes = std::as_bytes(std::span(values));
  field.is_array = true;
  field.dtype = dtype;
  field.sizes = sizes;
  return field;
}

inline Field file_field(std::string_view name, std::string_view content) {
  Field field;
  field.name = name;
  field.bytes = io::as_bytes(content);
  return field;
}

}  // namespace bellows::data::testing
