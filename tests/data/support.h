#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bellows/data.h"
#include "bellows/io/archives/tar.h"
#include "bellows/io/images/image.h"

namespace bellows::data::testing {

inline const std::string kDigits = std::string(BELLOWS_SOURCE_DIR) + "/data/digits";
inline const std::string kGoldens = std::string(BELLOWS_SOURCE_DIR) + "/tests/goldens/data/";

/// A folder of its own for each test, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "bellows_data_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

struct Member {
  std::string name, content;
};

inline void write_shard(const std::string& path, const std::vector<Member>& members) {
  io::TarWriter shard(path);
  for (const Member& member : members) shard.add(member.name, member.content);
  shard.close();
}

/// The PNG of the digits' first test sample: 8 x 8, gray.
inline std::string a_png() {
  static const SourcePtr digits = open_webdataset({kDigits + "/test-000.tar"});
  const Sample sample = digits->read(0);
  const auto bytes = sample.find("png")->bytes;
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The values of a tensor as bytes.
inline std::string content(const at::Tensor& tensor) {
  EXPECT_TRUE(tensor.is_non_overlapping_and_dense());
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// All that distinguishes a batch, as one string.
inline std::string fingerprint(const Batch& batch) {
  std::string text = c10::str(batch.epoch(), "/", batch.index(), ":", c10::IntArrayRef(batch.ids()));
  for (const auto& [name, tensor] : batch.tensors())
    text += name + c10::str(tensor.sizes(), tensor.strides(), tensor.dtype()) + content(tensor);
  return text;
}

inline std::vector<std::string> fingerprints(Loader& loader, int64_t epoch, int64_t first = 0) {
  std::vector<std::string> result;
  loader.start(epoch, first);
  while (auto batch = loader.next()) result.push_back(fingerprint(*batch));
  return result;
}

/// The message of the error that `body` throws; fails the test when it throws none.
template <class F>
std::string error_of(const F& body) {
  try {
    body();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "expected a c10::ValueError";
  return "";
}

/// Samples with one int64 "x" each, equal to the id; a hook runs on each read.
class CountingSource final : public Source {
 public:
  using Source::read;
  explicit CountingSource(int64_t size, std::function<void(int64_t)> hook = {}) : size_(size), hook_(std::move(hook)) {}
  int64_t size() const override { return size_; }
  void read(int64_t index, Sample& sample) const override {
    if (hook_) hook_(index);
    auto value = std::make_shared<int64_t>(index);
    sample.clear();
    sample.id = index;
    Field& field = sample.fields.emplace_back();
    field.name = "x";
    field.is_array = true;
    field.dtype = c10::ScalarType::Long;
    field.bytes = std::as_bytes(std::span(value.get(), 1));
    sample.owner = std::move(value);
  }
  std::string describe() const override { return "numbers"; }

 private:
  int64_t size_;
  std::function<void(int64_t)> hook_;
};

}  // namespace bellows::data::testing
