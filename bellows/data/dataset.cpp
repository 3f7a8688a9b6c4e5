#include "bellows/data/dataset.h"

#include <c10/util/Exception.h>

namespace bellows::data {

namespace {

/// A copy of `dataset` that `change` was run on.
template <class F>
Dataset changed(Dataset dataset, const F& change) {
  change(dataset);
  return dataset;
}

}  // namespace

Dataset::Dataset(SourcePtr source, DatasetInfo info) : source_(std::move(source)), info_(std::move(info)) {
  TORCH_CHECK_VALUE(source_, "Dataset: expected a source, got null.");
  pipeline_.num_classes = static_cast<int64_t>(info_.classes.size());
  if (info_.image_size.size() == 3 && info_.image_size[2] == 1) pipeline_.decode = "gray";
}

Dataset Dataset::shuffle(uint64_t seed) const {
  return changed(*this, [&](Dataset& d) {
    d.loader_.shuffle = true;
    d.loader_.seed = seed;
  });
}

Dataset Dataset::sequential() const {
  return changed(*this, [](Dataset& d) { d.loader_.shuffle = false; });
}

Dataset Dataset::decode(const std::string& mode) const {
  TORCH_CHECK_VALUE(mode == "rgb" || mode == "gray", "Dataset::decode: expected \"rgb\" or \"gray\", got \"", mode,
                    "\".");
  return changed(*this, [&](Dataset& d) { d.pipeline_.decode = mode; });
}

Dataset Dataset::transform(Transform step) const {
  TORCH_CHECK_VALUE(step.run, "Dataset::transform: expected a step, got an empty function.");
  return changed(*this, [&](Dataset& d) { d.pipeline_.transforms.push_back(std::move(step)); });
}

Dataset Dataset::resize(int64_t height, int64_t width) const {
  return transform(data::resize(height, width));
}
Dataset Dataset::resize_shorter(int64_t side) const {
  return transform(data::resize_shorter(side));
}
Dataset Dataset::center_crop(int64_t height, int64_t width) const {
  return transform(data::center_crop(height, width));
}
Dataset Dataset::random_crop(int64_t height, int64_t width, int64_t padding) const {
  return transform(data::random_crop(height, width, padding));
}
Dataset Dataset::flip(double p) const {
  return transform(data::random_flip(p));
}

Dataset Dataset::normalize(std::vector<double> mean, std::vector<double> std) const {
  return changed(*this, [&](Dataset& d) {
    d.pipeline_.mean = std::move(mean);
    d.pipeline_.std = std::move(std);
  });
}

Dataset Dataset::normalize() const {
  TORCH_CHECK_VALUE(
      !info_.mean.empty() && !info_.std.empty(),
      "Dataset::normalize: this data set does not say its mean and std. Give them: normalize({0.5}, {0.25}).");
  return normalize(info_.mean, info_.std);
}

Dataset Dataset::channels_last(bool on) const {
  return changed(*this, [&](Dataset& d) { d.pipeline_.channels_last = on; });
}

Dataset Dataset::num_classes(int64_t n) const {
  TORCH_CHECK_VALUE(n >= 0, "Dataset::num_classes: expected at least 0, got ", n, ".");
  return changed(*this, [&](Dataset& d) { d.pipeline_.num_classes = n; });
}

Dataset Dataset::require(std::vector<std::string> names) const {
  return changed(*this, [&](Dataset& d) { d.pipeline_.required = std::move(names); });
}

Dataset Dataset::batch(int64_t size, bool drop_last) const {
  return changed(*this, [&](Dataset& d) {
    d.loader_.batch_size = size;
    d.loader_.drop_last = drop_last;
  });
}

Dataset Dataset::on_bad_sample(OnBadSample policy) const {
  return changed(*this, [&](Dataset& d) { d.loader_.on_bad_sample = policy; });
}

Dataset Dataset::subrange(int64_t begin, int64_t end) const {
  return changed(*this, [&](Dataset& d) { d.source_ = data::subrange(source_, begin, end); });
}

Dataset Dataset::subset(std::vector<int64_t> indices) const {
  return changed(*this, [&](Dataset& d) { d.source_ = data::subset(source_, std::move(indices)); });
}

Dataset Dataset::threads(int64_t n) const {
  return changed(*this, [&](Dataset& d) { d.loader_.threads = n; });
}

Dataset Dataset::prefetch(int64_t batches) const {
  return changed(*this, [&](Dataset& d) { d.loader_.prefetch = batches; });
}

Dataset Dataset::cache(int64_t bytes) const {
  TORCH_CHECK_VALUE(bytes >= 0, "Dataset::cache: expected at least 0 bytes, got ", bytes, ".");
  return changed(*this, [&](Dataset& d) { d.pipeline_.cache_bytes = bytes; });
}

Loader Dataset::loader() const {
  return Loader(source_, pipeline_, loader_);
}

}  // namespace bellows::data
