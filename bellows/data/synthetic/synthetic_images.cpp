#include "bellows/data/synthetic/synthetic_images.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "bellows/core/seed.h"
#include "bellows/data/synthetic/pattern.h"
#include "bellows/io/images/image.h"

namespace bellows::data {

namespace {

constexpr int64_t smallest = 16, largest = 512;

void check_size(int64_t size) {
  TORCH_CHECK_VALUE(size >= smallest && size <= largest, "synthetic_images: expected a size from ", smallest, " to ",
                    largest, " pixels, got ", size, ".");
}

using Color = std::array<double, 3>;

Color random_color(RandomStream& random) {
  Color color;
  for (double& value : color) value = 255 * random.uniform();
  return color;
}

/// A color that differs visibly from the other one.
Color random_contrast(RandomStream& random, const Color& other) {
  constexpr double least = 150;
  for (;;) {
    const Color color = random_color(random);
    double difference = 0;
    for (size_t i = 0; i < color.size(); ++i) difference += std::abs(color[i] - other[i]);
    if (difference >= least) return color;
  }
}

/// The share of the foreground in a pixel: the mean over 2×2 points.
double coverage(const Pattern& pattern, int64_t x, int64_t y) {
  double sum = 0;
  for (const double dy : {0.25, 0.75}) {
    for (const double dx : {0.25, 0.75}) sum += pattern.at(static_cast<double>(x) + dx, static_cast<double>(y) + dy);
  }
  return sum / 4;
}

uint8_t as_pixel(double value) {
  return static_cast<uint8_t>(std::floor(std::clamp(value, 0.0, 255.0) + 0.5));
}

/// "000042", the class and the PNG of a sample, in Sample::buffer.
class SyntheticSource final : public Source {
 public:
  SyntheticSource(const SyntheticImageOptions& options, uint64_t seed) : options_(options), seed_(seed) {}
  int64_t size() const override { return options_.samples; }
  std::string describe() const override {
    return c10::str(options_.samples, " synthetic images of ", options_.size, "x", options_.size, " (seed ",
                    options_.seed, ", ", options_.split, ")");
  }

  void read(int64_t index, Sample& sample) const override {
    TORCH_CHECK_VALUE(index >= 0 && index < size(), "synthetic_images: expected an index below ", size(), ", got ",
                      index, ".");
    const int64_t label = label_of(index);
    const io::Bytes png = io::encode_png(image(index));
    std::string text = std::to_string(index);
    text.insert(0, text.size() < digits ? digits - text.size() : 0, '0');
    const size_t key = text.size();
    text += std::to_string(label);
    sample.clear();
    sample.buffer.resize(text.size() + png.size());
    std::memcpy(sample.buffer.data(), text.data(), text.size());
    std::memcpy(sample.buffer.data() + text.size(), png.data(), png.size());
    const std::span<const std::byte> bytes(sample.buffer);
    sample.id = index;
    sample.key = {reinterpret_cast<const char*>(sample.buffer.data()), key};
    sample.fields.push_back({.name = "png", .bytes = bytes.subspan(text.size())});
    sample.fields.push_back({.name = "cls", .bytes = bytes.subspan(key, text.size() - key)});
  }

  at::Tensor image(int64_t index) const {
    return synthetic_image(label_of(index), options_.size, mix_seed(seed_, static_cast<uint64_t>(index)));
  }

 private:
  static constexpr size_t digits = 6;
  static int64_t label_of(int64_t index) { return index % static_cast<int64_t>(synthetic_classes().size()); }

  SyntheticImageOptions options_;
  uint64_t seed_;
};

/// The seed of a split. Splits with different names have unrelated seeds.
uint64_t split_seed(const SyntheticImageOptions& options) {
  uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  for (const char c : options.split) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return mix_seed(options.seed, hash, static_cast<uint64_t>(options.size));
}

double rounded_statistic(double value) {
  return std::round(value * 1e4) / 1e4;
}

/// Sets the mean and the standard deviation of the first training images.
void set_statistics(const SyntheticImageOptions& options, DatasetInfo& info) {
  constexpr int64_t images = 500;
  SyntheticImageOptions training = options;
  training.split = "train";
  const SyntheticSource source(training, split_seed(training));
  std::array<double, 3> sums{}, squares{};
  for (int64_t i = 0; i < images; ++i) {
    const at::Tensor image = source.image(i);
    const auto* pixels = image.const_data_ptr<uint8_t>();
    for (int64_t j = 0; j < image.numel(); ++j) {
      const auto channel = static_cast<size_t>(j % 3);
      const double value = pixels[j];
      sums[channel] += value;
      squares[channel] += value * value;
    }
  }
  const auto count = static_cast<double>(images * options.size * options.size);
  for (size_t channel = 0; channel < sums.size(); ++channel) {
    const double mean = sums[channel] / count / 255;
    info.mean.push_back(rounded_statistic(mean));
    info.std.push_back(rounded_statistic(std::sqrt(squares[channel] / count / (255.0 * 255) - mean * mean)));
  }
}

}  // namespace

at::Tensor synthetic_image(int64_t label, int64_t size, uint64_t seed) {
  check_size(size);
  const auto classes = static_cast<int64_t>(synthetic_classes().size());
  TORCH_CHECK_VALUE(label >= 0 && label < classes, "synthetic_image: expected a class from 0 to ", classes - 1,
                    ", got ", label, ".");
  RandomStream random(seed);
  const Color back = random_color(random), front = random_contrast(random, back);
  const Pattern pattern(label, static_cast<double>(size), random);
  const Clouds clouds(static_cast<double>(size) / (2 + 4 * random.uniform()), random);
  const double cloudiness = 100 * random.uniform(), noise = 10 + 50 * random.uniform();
  at::Tensor image = at::empty({size, size, 3}, at::TensorOptions().dtype(at::kByte));
  auto* pixel = image.mutable_data_ptr<uint8_t>();
  for (int64_t y = 0; y < size; ++y) {
    for (int64_t x = 0; x < size; ++x) {
      const double share = coverage(pattern, x, y);
      const double shade = cloudiness * (clouds.at(static_cast<double>(x), static_cast<double>(y)) - 0.5);
      for (size_t channel = 0; channel < 3; ++channel) {
        const double color = back[channel] + share * (front[channel] - back[channel]);
        *pixel++ = as_pixel(color + shade + noise * (random.uniform() - 0.5));
      }
    }
  }
  return image;
}

Dataset synthetic_images(const SyntheticImageOptions& options) {
  check_size(options.size);
  TORCH_CHECK_VALUE(options.samples >= 1, "synthetic_images: expected at least one sample, got ", options.samples, ".");
  DatasetInfo info{.name = c10::str("synthetic shapes and textures, seed ", options.seed),
                   .split = options.split,
                   .splits = {options.split},
                   .classes = synthetic_classes(),
                   .image_size = {options.size, options.size, 3}};
  set_statistics(options, info);
  return Dataset(std::make_shared<SyntheticSource>(options, split_seed(options)), std::move(info));
}

}  // namespace bellows::data
