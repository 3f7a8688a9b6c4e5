#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bellows/data/source.h"

namespace bellows::data {

/// A source that reads the samples of another source and changes them. Derived classes override read(). They also override
/// stored() if their samples count as stored.
class SourceWrapper : public Source {
 public:
  explicit SourceWrapper(SourcePtr inner) : inner_(std::move(inner)) {}

  int64_t size() const override { return inner_->size(); }
  int64_t id_bound() const override { return inner_->id_bound(); }
  std::string describe() const override { return inner_->describe(); }
  bool prefetch(int64_t index) const override { return inner_->prefetch(index); }
  std::vector<int64_t> block_starts() const override { return inner_->block_starts(); }

 protected:
  const SourcePtr& inner() const { return inner_; }

 private:
  SourcePtr inner_;
};

}  // namespace bellows::data
