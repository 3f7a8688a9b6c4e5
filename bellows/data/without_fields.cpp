#include "bellows/data/without_fields.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace bellows::data {

namespace {

class SourceWithoutFields final : public Source {
 public:
  using Source::read;

  SourceWithoutFields(SourcePtr source, std::vector<std::string> names)
      : source_(std::move(source)), names_(std::move(names)) {
    TORCH_CHECK_VALUE(source_, "without_fields: expected a source, got null.");
  }

  int64_t size() const override { return source_->size(); }
  void read(int64_t index, Sample& sample) const override {
    source_->read(index, sample);
    std::erase_if(sample.fields,
                  [&](const Field& field) { return std::ranges::find(names_, field.name) != names_.end(); });
  }
  int64_t id_bound() const override { return source_->id_bound(); }
  std::string describe() const override { return source_->describe(); }
  bool prefetch(int64_t index) const override { return source_->prefetch(index); }
  bool stored() const override { return source_->stored(); }
  std::vector<int64_t> block_starts() const override { return source_->block_starts(); }

 private:
  SourcePtr source_;
  std::vector<std::string> names_;
};

}  // namespace

SourcePtr without_fields(SourcePtr source, std::vector<std::string> names) {
  return std::make_shared<SourceWithoutFields>(std::move(source), std::move(names));
}

}  // namespace bellows::data
