#include "bellows/train/teacher/cached_source.h"

#include <c10/util/Exception.h>

#include <utility>
#include <vector>

#include "bellows/data/fingerprint.h"
#include "bellows/data/source_wrapper.h"

namespace bellows::train {

namespace {

class CachedOutputs final : public data::SourceWrapper, public data::Derived {
 public:
  using Source::read;

  CachedOutputs(data::SourcePtr source, std::shared_ptr<const CacheFile> cache)
      : data::SourceWrapper(std::move(source)),
        cache_(std::move(cache)),
        row_of_(static_cast<size_t>(inner()->id_bound()), -1),
        positions_(cache_->layout().shape) {
    const std::vector<int64_t>& ids = cache_->ids();
    for (size_t row = 0; row < ids.size(); ++row) {
      const bool known = ids[row] >= 0 && ids[row] < inner()->id_bound();
      TORCH_CHECK_VALUE(known, "teacher_cache = ", cache_->path(), ": expected samples below ", inner()->id_bound(),
                        ", found sample ", ids[row], ". Delete the file, and the next run computes it again.");
      row_of_[static_cast<size_t>(ids[row])] = static_cast<int64_t>(row);
    }
    if (!positions_.empty()) positions_.pop_back();
  }

  bool stored() const override { return inner()->stored(); }
  const data::SourcePtr& origin() const override { return inner(); }

  void read(int64_t index, data::Sample& sample) const override {
    inner()->read(index, sample);
    const int64_t row = row_of_[static_cast<size_t>(sample.id)];
    TORCH_CHECK_VALUE(row >= 0, "teacher_cache = ", cache_->path(), ": the teacher's outputs for ", sample.where(),
                      " are missing. The sample could not be used when the file was written. Delete the file, and the "
                      "next run computes it again.");
    const CacheLayout& layout = cache_->layout();
    const io::ByteSpan bytes = cache_->row(row);
    const auto add = [&](const char* name, int64_t begin, int64_t size, c10::ScalarType dtype,
                         const std::vector<int64_t>& sizes) {
      data::Field& field = sample.fields.emplace_back();
      field.name = name;
      field.bytes = bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(size));
      field.is_array = true;
      field.dtype = dtype;
      field.sizes = sizes;
    };
    add(teacher_logits, layout.logits_begin(), layout.logits_bytes(), layout.dtype, layout.shape);
    if (layout.top == 0) return;
    add(teacher_classes, 0, layout.rest_begin(), c10::ScalarType::Int, layout.shape);
    add(teacher_rest, layout.rest_begin(), layout.logits_begin() - layout.rest_begin(), c10::ScalarType::Float,
        positions_);
  }

 private:
  std::shared_ptr<const CacheFile> cache_;
  std::vector<int64_t> row_of_;     ///< by the id of a sample; -1 if the cache lacks the sample
  std::vector<int64_t> positions_;  ///< shape of the rest
};

}  // namespace

data::SourcePtr cached_outputs(data::SourcePtr source, std::shared_ptr<const CacheFile> cache) {
  return std::make_shared<CachedOutputs>(std::move(source), std::move(cache));
}

}  // namespace bellows::train
