#pragma once

#include <ATen/ops/arange.h>

#include <algorithm>
#include <functional>

#include "bellows/data/convert/convert.h"
#include "bellows/system/file.h"
#include "tests/data/support.h"

namespace bellows::data::testing {

inline Dataset digits() {
  return open(kDigits, {.split = "test"});
}

/// Rows of numbers, as tables and arrays hold them.
inline Dataset numbers() {
  return Dataset(from_tensors({{"x", at::arange(50, at::kDouble).mul(0.37)}, {"label", at::arange(50, at::kLong)}}));
}

/// All files below a path, one after the other.
inline std::string all_bytes(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return read_text_file(path);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::string bytes;
  for (const std::string& file : files) bytes += file.substr(path.size()) + "\n" + read_text_file(file);
  return bytes;
}

inline std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// Another source with a hook before each read, which may change what becomes of the sample.
class HookedSource final : public Source {
 public:
  using Source::read;
  HookedSource(SourcePtr source, std::function<void(int64_t)> hook, std::function<void(Sample&)> change = {})
      : source_(std::move(source)), hook_(std::move(hook)), change_(std::move(change)) {}
  int64_t size() const override { return source_->size(); }
  void read(int64_t index, Sample& sample) const override {
    if (hook_) hook_(index);
    source_->read(index, sample);
    if (change_) change_(sample);
  }
  std::string describe() const override { return source_->describe(); }

 private:
  SourcePtr source_;
  std::function<void(int64_t)> hook_;
  std::function<void(Sample&)> change_;
};

/// The digits, each `change`d once the file `finished` is there: as on a disk that gives back something else.
inline Dataset changing_digits(const std::string& finished, std::function<void(Sample&)> change) {
  const auto later = [finished, change = std::move(change)](Sample& sample) {
    if (std::filesystem::exists(finished)) change(sample);
  };
  return Dataset(std::make_shared<HookedSource>(digits().source(), std::function<void(int64_t)>(), later),
                 digits().info());
}

}  // namespace bellows::data::testing
