#include "bellows/data/without_fields.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "bellows/data/source_wrapper.h"

namespace bellows::data {

namespace {

class SourceWithoutFields final : public SourceWrapper {
 public:
  using Source::read;

  SourceWithoutFields(SourcePtr source, std::vector<std::string> names)
      : SourceWrapper(std::move(source)), names_(std::move(names)) {
    TORCH_CHECK_VALUE(inner(), "without_fields: expected a source, got null.");
  }

  void read(int64_t index, Sample& sample) const override {
    inner()->read(index, sample);
    std::erase_if(sample.fields,
                  [&](const Field& field) { return std::ranges::find(names_, field.name) != names_.end(); });
  }
  bool stored() const override { return inner()->stored(); }

 private:
  std::vector<std::string> names_;
};

}  // namespace

SourcePtr without_fields(SourcePtr source, std::vector<std::string> names) {
  return std::make_shared<SourceWithoutFields>(std::move(source), std::move(names));
}

}  // namespace bellows::data
