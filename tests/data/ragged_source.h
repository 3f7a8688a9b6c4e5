#pragma once

#include <string>
#include <utility>
#include <vector>

#include "bellows/data/source.h"

namespace bellows::data::testing {

/// An array of its own size for each sample.
class RaggedSource final : public Source {
 public:
  using Source::read;
  explicit RaggedSource(std::vector<at::Tensor> arrays, std::string name = "x")
      : arrays_(std::move(arrays)), name_(std::move(name)) {}
  int64_t size() const override { return static_cast<int64_t>(arrays_.size()); }
  void read(int64_t index, Sample& sample) const override {
    sample.clear();
    sample.id = index;
    sample.fields.push_back(Field::of(name_, arrays_[static_cast<size_t>(index)]));
  }
  std::string describe() const override { return "arrays"; }

 private:
  std::vector<at::Tensor> arrays_;
  std::string name_;
};

}  // namespace bellows::data::testing
