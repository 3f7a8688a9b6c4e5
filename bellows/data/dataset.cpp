#include "bellows/data/dataset.h"

#include <c10/util/Exception.h>

#include "bellows/data/fingerprint.h"

namespace bellows::data {

namespace {

/// Returns a copy of `dataset` after applying `change`.
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
  return order(shuffled(), seed);
}

Dataset Dataset::sequential() const {
  return changed(*this, [](Dataset& d) { d.loader_.order = nullptr; });
}

Dataset Dataset::order(OrderPtr order, uint64_t seed) const {
  return changed(*this, [&](Dataset& d) {
    d.loader_.order = std::move(order);
    d.loader_.seed = seed;
  });
}

Dataset Dataset::distributed(int64_t rank, int64_t world_size, bool global_batch, bool fill_in_order) const {
  return changed(*this, [&](Dataset& d) {
    d.loader_.rank = rank;
    d.loader_.world_size = world_size;
    d.loader_.global_batch = global_batch;
    d.loader_.fill_in_order = fill_in_order;
  });
}

Dataset Dataset::decode(const std::string& mode) const {
  TORCH_CHECK_VALUE(mode == "rgb" || mode == "gray", "Dataset::decode: expected \"rgb\" or \"gray\", got \"", mode,
                    "\".");
  return changed(*this, [&](Dataset& d) { d.pipeline_.decode = mode; });
}

Dataset Dataset::transform(Transform step) const {
  TORCH_CHECK_VALUE(step.run, "Dataset::transform: expected a transform, got an empty function.");
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
Dataset Dataset::random_resized_crop(int64_t height, int64_t width, std::pair<double, double> scale,
                                     std::pair<double, double> ratio) const {
  return transform(data::random_resized_crop(height, width, scale, ratio));
}
Dataset Dataset::flip(double p) const {
  return transform(data::random_flip(p));
}
Dataset Dataset::color_jitter(const ColorJitter& amounts) const {
  return transform(data::color_jitter(amounts));
}
Dataset Dataset::random_grayscale(double p) const {
  return transform(data::random_grayscale(p));
}
Dataset Dataset::random_erasing(double p, std::pair<double, double> scale, std::pair<double, double> ratio,
                                std::vector<uint8_t> fill) const {
  return transform(data::random_erasing(p, scale, ratio, std::move(fill)));
}
Dataset Dataset::cutout(int64_t side, std::vector<uint8_t> fill) const {
  return transform(data::cutout(side, std::move(fill)));
}
Dataset Dataset::rand_augment(int ops, int magnitude) const {
  return transform(data::rand_augment(ops, magnitude));
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
      "Dataset::normalize: this dataset does not declare its mean and std. Pass them: normalize({0.5}, {0.25}).");
  return normalize(info_.mean, info_.std);
}

Dataset Dataset::tokenize(Tokenizer tokenizer, std::string field) const {
  return changed(*this, [&](Dataset& d) { d.source_ = tokenized(d.source_, std::move(tokenizer), std::move(field)); });
}

Dataset Dataset::pad(const std::string& field, const c10::Scalar& value, int64_t multiple_of) const {
  return changed(*this, [&](Dataset& d) {
    std::erase_if(d.pipeline_.padding, [&](const Padding& before) { return before.field == field; });
    d.pipeline_.padding.push_back({field, value, multiple_of});
  });
}

Dataset Dataset::pixels(PixelPass pass) const {
  TORCH_CHECK_VALUE(pass, "Dataset::pixels: expected a pass, got an empty function.");
  return changed(*this, [&](Dataset& d) { d.pipeline_.pixels = std::move(pass); });
}

Dataset Dataset::mix(const MixOptions& options) const {
  return changed(*this, [&](Dataset& d) { d.pipeline_.mix = options; });
}

Dataset Dataset::dtype(c10::ScalarType dtype) const {
  const bool known =
      dtype == c10::ScalarType::Float || dtype == c10::ScalarType::BFloat16 || dtype == c10::ScalarType::Byte;
  TORCH_CHECK_VALUE(known, "Dataset::dtype: expected Float, BFloat16 or Byte, got ", c10::toString(dtype), ".");
  return changed(*this, [&](Dataset& d) { d.pipeline_.dtype = dtype; });
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

Dataset Dataset::batch(int64_t size, Remainder remainder) const {
  return changed(*this, [&](Dataset& d) {
    d.loader_.batch_size = size;
    d.loader_.remainder = remainder;
  });
}

Dataset Dataset::on_bad_sample(OnBadSample policy) const {
  return changed(*this, [&](Dataset& d) { d.loader_.on_bad_sample = policy; });
}

Dataset Dataset::retries(int64_t n) const {
  return changed(*this, [&](Dataset& d) { d.loader_.retries = n; });
}

Dataset Dataset::to(c10::Device device) const {
  return changed(*this, [&](Dataset& d) { d.loader_.device = device; });
}

Dataset Dataset::subrange(int64_t begin, int64_t end) const {
  return changed(*this, [&](Dataset& d) { d.source_ = data::subrange(source_, begin, end); });
}

Dataset Dataset::with_source(SourcePtr source) const {
  TORCH_CHECK_VALUE(source && source->size() == size(), "with_source: expected a source of ", size(), " samples, got ",
                    source ? c10::str(source->size()) : std::string("null"), ".");
  return changed(*this, [&](Dataset& d) { d.source_ = std::move(source); });
}

Dataset Dataset::subset(std::vector<int64_t> indices) const {
  return changed(*this, [&](Dataset& d) { d.source_ = data::subset(source_, std::move(indices)); });
}

Dataset Dataset::subset(const Subset& chosen) const {
  const std::string own = chosen.source.empty() ? "" : fingerprint(*this);
  TORCH_CHECK_VALUE(chosen.of == size() && chosen.source == own, "subset: the subset was chosen from ", chosen.of,
                    " samples (", chosen.source.empty() ? "no fingerprint" : chosen.source, "), but this dataset has ",
                    size(), " (", own.empty() ? "not examined" : own,
                    "). Create the subset again with `bellows select`.");
  return subset(chosen.ids);
}

Dataset Dataset::threads(int64_t n) const {
  return changed(*this, [&](Dataset& d) { d.loader_.threads = n; });
}

Dataset Dataset::prefetch(int64_t batches) const {
  return changed(*this, [&](Dataset& d) { d.loader_.prefetch = batches; });
}

Dataset Dataset::fast_decode(bool on) const {
  return changed(*this, [&](Dataset& d) { d.pipeline_.fast_decode = on; });
}

Dataset Dataset::cache(int64_t bytes) const {
  TORCH_CHECK_VALUE(bytes >= 0, "Dataset::cache: expected at least 0 bytes, got ", bytes, ".");
  return changed(*this, [&](Dataset& d) { d.pipeline_.cache_bytes = bytes; });
}

Loader Dataset::loader() const {
  return Loader(source_, pipeline_, loader_);
}

}  // namespace bellows::data
