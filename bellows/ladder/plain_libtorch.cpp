#include "bellows/ladder/plain_libtorch.h"

#include <archive.h>
#include <archive_entry.h>
#include <png.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <stdexcept>

namespace plain_libtorch {

namespace {

namespace nn = torch::nn;
using torch::data::Example;

// ---- data: shards are read into memory once; images are decoded on each access

struct Sample {
  std::string png;
  int64_t label = -1;
};

std::string entry_bytes(archive* tar, archive_entry* entry) {
  std::string bytes(static_cast<size_t>(archive_entry_size(entry)), '\0');
  if (archive_read_data(tar, bytes.data(), bytes.size()) != static_cast<la_ssize_t>(bytes.size())) {
    throw std::runtime_error("plain_libtorch: a shard is truncated");
  }
  return bytes;
}

void read_shard(const std::string& path, std::vector<Sample>& samples) {
  const std::unique_ptr<archive, int (*)(archive*)> tar(archive_read_new(), archive_read_free);
  archive_read_support_format_tar(tar.get());
  if (archive_read_open_filename(tar.get(), path.c_str(), 1 << 16) != ARCHIVE_OK) {
    throw std::runtime_error("plain_libtorch: cannot read " + path);
  }
  std::map<std::string, size_t> index;
  archive_entry* entry = nullptr;
  for (;;) {
    const int status = archive_read_next_header(tar.get(), &entry);
    if (status == ARCHIVE_EOF) return;
    if (status != ARCHIVE_OK && status != ARCHIVE_WARN) {
      throw std::runtime_error("plain_libtorch: " + path + " is damaged: " + archive_error_string(tar.get()));
    }
    const std::string name = archive_entry_pathname(entry);
    const size_t dot = name.find('.');
    if (dot == std::string::npos) continue;
    const auto [position, is_new] = index.emplace(name.substr(0, dot), samples.size());
    if (is_new) samples.emplace_back();
    Sample& sample = samples[position->second];
    if (name.substr(dot) == ".png") sample.png = entry_bytes(tar.get(), entry);
    if (name.substr(dot) == ".cls") sample.label = std::stoll(entry_bytes(tar.get(), entry));
  }
}

std::vector<Sample> read_split(const std::string& folder, const std::string& split) {
  std::vector<std::string> paths;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    const std::string name = file.path().filename().string();
    if (name.rfind(split + "-", 0) == 0 && file.path().extension() == ".tar") paths.push_back(file.path().string());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Sample> samples;
  for (const std::string& path : paths) read_shard(path, samples);
  if (samples.empty()) throw std::runtime_error("plain_libtorch: no samples in " + folder + "/" + split + "-*.tar");
  return samples;
}

torch::Tensor decode_png(const std::string& bytes) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  if (!png_image_begin_read_from_memory(&image, bytes.data(), bytes.size())) throw std::runtime_error(image.message);
  image.format = PNG_FORMAT_GRAY;
  auto pixels = torch::empty({1, image.height, image.width}, torch::kUInt8);
  if (!png_image_finish_read(&image, nullptr, pixels.data_ptr(), 0, nullptr)) throw std::runtime_error(image.message);
  return pixels;
}

class Digits : public torch::data::Dataset<Digits> {
 public:
  Digits(const std::string& folder, const std::string& split) : samples_(read_split(folder, split)) {}

  Example<> get(size_t index) override {
    const Sample& sample = samples_[index];
    return {decode_png(sample.png).to(torch::kFloat32).div_(255), torch::tensor(sample.label)};
  }
  std::optional<size_t> size() const override { return samples_.size(); }

 private:
  std::vector<Sample> samples_;
};

/// The images of a batch, scaled to the requested size.
torch::Tensor scaled(const torch::Tensor& images, int64_t size) {
  if (size == 0 || images.size(-1) == size) return images;
  namespace F = nn::functional;
  return F::interpolate(
      images,
      F::InterpolateFuncOptions().size(std::vector<int64_t>{size, size}).mode(torch::kBilinear).align_corners(false));
}

auto prepared(const Options& options, const std::string& split) {
  return Digits(options.data, split)
      .map(torch::data::transforms::Normalize<>(0.3053, 0.376))
      .map(torch::data::transforms::Stack<>());
}

auto train_loader(const Options& options) {
  return torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      prepared(options, "train"), torch::data::DataLoaderOptions().batch_size(static_cast<size_t>(options.batch)));
}

auto in_order(const Options& options, const std::string& split, int64_t batch) {
  return torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      prepared(options, split), torch::data::DataLoaderOptions().batch_size(static_cast<size_t>(batch)));
}

// ---- model: a ResNet for 8×8 images

nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

struct BlockImpl : nn::Module {
  BlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1(register_module("conv1", conv(in, out, 3, stride))),
        bn1(register_module("bn1", nn::BatchNorm2d(out))),
        conv2(register_module("conv2", conv(out, out, 3, 1))),
        bn2(register_module("bn2", nn::BatchNorm2d(out))) {
    if (stride != 1 || in != out) {
      downsample = register_module("downsample", nn::Sequential(conv(in, out, 1, stride), nn::BatchNorm2d(out)));
    }
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto shortcut = downsample ? downsample->forward(x) : x;
    auto y = bn1(conv1(x)).relu_();
    y = bn2(conv2(y));
    return y.add_(shortcut).relu_();
  }

  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  nn::Sequential downsample{nullptr};
};
TORCH_MODULE(Block);

struct NetImpl : nn::Module {
  NetImpl() {
    for (auto& module : modules(false)) {
      if (auto* c = module->as<nn::Conv2d>()) nn::init::kaiming_normal_(c->weight, 0, torch::kFanOut, torch::kReLU);
    }
  }

  torch::Tensor forward(const torch::Tensor& x) {
    auto y = bn1(conv1(x)).relu_();
    y = layer3->forward(layer2->forward(layer1->forward(y)));
    return fc(torch::flatten(torch::adaptive_avg_pool2d(y, {1, 1}), 1));
  }

  nn::Conv2d conv1 = register_module("conv1", conv(1, 16, 3, 1));
  nn::BatchNorm2d bn1 = register_module("bn1", nn::BatchNorm2d(16));
  nn::Sequential layer1 = register_module("layer1", nn::Sequential(Block(16, 16, 1)));
  nn::Sequential layer2 = register_module("layer2", nn::Sequential(Block(16, 32, 2)));
  nn::Sequential layer3 = register_module("layer3", nn::Sequential(Block(32, 64, 2)));
  nn::Linear fc = register_module("fc", nn::Linear(64, 10));
};
TORCH_MODULE(Net);

Net seeded_net(uint64_t seed) {
  torch::manual_seed(seed);
  return Net();
}

/// Adds the time since the last call to `seconds`.
class Stopwatch {
 public:
  void add_to(double& seconds) {
    const auto now = Clock::now();
    seconds += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
};

torch::optim::SGDOptions sgd(const Options& options) {
  return torch::optim::SGDOptions(options.learning_rate).momentum(options.momentum).weight_decay(options.weight_decay);
}

}  // namespace

struct Training::State {
  explicit State(const Options& given)
      : options(given),
        net(seeded_net(given.seed)),
        optimizer(net->parameters(), sgd(given)),
        train(train_loader(given)),
        test(in_order(given, "test", 256)),
        train_size(static_cast<int64_t>(read_split(given.data, "train").size())),
        test_size(static_cast<int64_t>(read_split(given.data, "test").size())),
        next(train->begin()) {}

  // One iteration of a standard training loop.
  torch::Tensor step() {
    Stopwatch watch;
    if (next == train->end()) next = train->begin();
    const Example<>& batch = *next;
    const auto images = scaled(batch.data, options.image_size);
    watch.add_to(phases.load);
    optimizer.zero_grad();
    auto output = net(images);
    auto loss = nn::functional::cross_entropy(output, batch.target);
    watch.add_to(phases.forward);
    loss.backward();
    watch.add_to(phases.backward);
    optimizer.step();
    watch.add_to(phases.optimizer);
    running_loss += loss.item<double>();
    running_right += output.argmax(1).eq(batch.target).sum().item<int64_t>();
    double metrics = 0;
    watch.add_to(metrics);
    ++next;  // decodes the next batch
    watch.add_to(phases.load);
    ++steps;
    return loss;
  }

  Options options;
  Net net;
  torch::optim::SGD optimizer;
  decltype(train_loader(options)) train;
  decltype(in_order(options, "test", 0)) test;
  int64_t train_size, test_size;
  decltype(train->begin()) next;
  PhaseSeconds phases;
  int64_t steps = 0;
  double running_loss = 0;
  int64_t running_right = 0;
};

Training::Training(const Options& options) : state_(std::make_unique<State>(options)) {}
Training::~Training() = default;
Training::Training(Training&&) noexcept = default;
Training& Training::operator=(Training&&) noexcept = default;

double Training::run_steps(int64_t n) {
  state_->net->train();
  torch::Tensor loss;
  for (int64_t i = 0; i < n; ++i) loss = state_->step();
  return loss.defined() ? loss.item<double>() : 0;
}

double Training::first_batch_loss() {
  state_->net->eval();
  const torch::NoGradGuard no_grad;
  const auto loader = in_order(state_->options, "train", state_->options.batch);
  const Example<> batch = *loader->begin();
  return nn::functional::cross_entropy(state_->net(scaled(batch.data, state_->options.image_size)), batch.target)
      .item<double>();
}

double Training::evaluate() {
  state_->net->eval();
  const torch::NoGradGuard no_grad;
  int64_t right = 0;
  for (auto& batch : *state_->test) {
    right +=
        state_->net(scaled(batch.data, state_->options.image_size)).argmax(1).eq(batch.target).sum().item<int64_t>();
  }
  return static_cast<double>(right) / static_cast<double>(state_->test_size);
}

std::vector<std::pair<std::string, at::Tensor>> Training::state_dict() const {
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (const auto& item : state_->net->named_parameters()) result.emplace_back(item.key(), item.value());
  for (const auto& item : state_->net->named_buffers()) result.emplace_back(item.key(), item.value());
  return result;
}

const PhaseSeconds& Training::phase_seconds() const {
  return state_->phases;
}
int64_t Training::step_count() const {
  return state_->steps;
}
int64_t Training::steps_per_epoch() const {
  return (train_size() + batch() - 1) / batch();
}
int64_t Training::train_size() const {
  return state_->train_size;
}
int64_t Training::test_size() const {
  return state_->test_size;
}
int64_t Training::batch() const {
  return state_->options.batch;
}

}  // namespace plain_libtorch
