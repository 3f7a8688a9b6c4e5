#include "bellows/data/rename.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "bellows/data/source_wrapper.h"

namespace bellows::data {

namespace {

class RenamedSource final : public SourceWrapper {
 public:
  using Source::read;

  RenamedSource(SourcePtr source, std::vector<std::pair<std::string, std::string>> names)
      : SourceWrapper(std::move(source)), names_(std::move(names)) {
    for (size_t i = 0; i < names_.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        TORCH_CHECK_VALUE(names_[i].first != names_[k].first && names_[i].second != names_[k].second,
                          "rename_fields: expected each name only once, got \"", names_[i].first, "\" to \"",
                          names_[i].second, "\" and \"", names_[k].first, "\" to \"", names_[k].second, "\".");
      }
    }
  }

  void read(int64_t index, Sample& sample) const override {
    inner()->read(index, sample);
    for (Field& field : sample.fields) {
      const auto row =
          std::find_if(names_.begin(), names_.end(), [&](auto& names) { return names.first == field.name; });
      if (row != names_.end()) field.name = row->second;
    }
    for (const auto& [before, after] : names_) {
      const auto same = [&, name = std::string_view(after)](const Field& field) { return field.name == name; };
      TORCH_CHECK_VALUE(std::count_if(sample.fields.begin(), sample.fields.end(), same) < 2,
                        "rename_fields: ", sample.where(), " has a field \"", after, "\" in addition to \"", before,
                        "\", which would get the same name.");
    }
  }
  bool stored() const override { return inner()->stored(); }

 private:
  std::vector<std::pair<std::string, std::string>> names_;
};

}  // namespace

SourcePtr rename_fields(SourcePtr source, std::vector<std::pair<std::string, std::string>> names) {
  return std::make_shared<RenamedSource>(std::move(source), std::move(names));
}

}  // namespace bellows::data
