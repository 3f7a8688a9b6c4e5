#include "bellows/data/rename.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace bellows::data {

namespace {

class RenamedSource final : public Source {
 public:
  using Source::read;

  RenamedSource(SourcePtr source, std::vector<std::pair<std::string, std::string>> names)
      : source_(std::move(source)), names_(std::move(names)) {
    for (size_t i = 0; i < names_.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        TORCH_CHECK_VALUE(names_[i].first != names_[k].first && names_[i].second != names_[k].second,
                          "rename_fields: expected each name only once, got \"", names_[i].first, "\" to \"",
                          names_[i].second, "\" and \"", names_[k].first, "\" to \"", names_[k].second, "\".");
      }
    }
  }

  int64_t size() const override { return source_->size(); }
  void read(int64_t index, Sample& sample) const override {
    source_->read(index, sample);
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
  std::string describe() const override { return source_->describe(); }
  bool prefetch(int64_t index) const override { return source_->prefetch(index); }
  bool stored() const override { return source_->stored(); }
  std::vector<int64_t> block_starts() const override { return source_->block_starts(); }
  int64_t id_bound() const override { return source_->id_bound(); }

 private:
  SourcePtr source_;
  std::vector<std::pair<std::string, std::string>> names_;
};

}  // namespace

SourcePtr rename_fields(SourcePtr source, std::vector<std::pair<std::string, std::string>> names) {
  return std::make_shared<RenamedSource>(std::move(source), std::move(names));
}

}  // namespace bellows::data
