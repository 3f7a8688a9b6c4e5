#include <ATen/ops/conv2d.h>
#include <ATen/ops/flatten.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/relu.h>
#include <c10/core/GradMode.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "bellows/io/tensors/safetensors.h"
#include "bellows/quant/checkpoint.h"
#include "bellows/quant/file.h"
#include "bellows/quant/formats/config.h"
#include "bellows/train/teacher/cache_file.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace bellows::fuzz {

namespace {

/// A file in memory, for parsers that read files.
class MemoryFile {
 public:
  explicit MemoryFile(io::ByteSpan bytes) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0 || ::write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

/// The model of the files in corpus/: a convolution and two linears. Images are [N, 1, 4, 4].
class SmallNetwork : public Model::Impl {
 public:
  at::Tensor forward(const at::Tensor& x) override {
    const at::Tensor y = at::relu(at::conv2d(x, conv_, {}, at::IntArrayRef{1, 1}, at::IntArrayRef{1, 1}));
    return at::linear(at::relu(at::linear(y.flatten(1), inner_, inner_bias_)), last_);
  }
  NamedTensors named_parameters() const override {
    return {{"conv.weight", conv_}, {"inner.weight", inner_}, {"inner.bias", inner_bias_}, {"last.weight", last_}};
  }
  NamedTensors named_buffers() const override { return {}; }
  void set_training(bool) override {}
  bool training() const override { return false; }
  void to(c10::Device) override {}

 private:
  at::Tensor conv_ = at::full({2, 1, 3, 3}, 0.1), inner_ = at::full({32, 32}, 0.1), inner_bias_ = at::full({32}, 0.1),
             last_ = at::full({8, 32}, 0.1);
};

Model small_network() {
  return Model("small", std::make_shared<SmallNetwork>());
}

/// Runs a model whose weights are valid, so that memory errors of its layers are seen.
void run(const quant::Quantized& loaded) {
  const at::NoGradGuard no_gradients;
  const at::Tensor x = at::linspace(-1, 1, 32).view({2, 1, 4, 4});
  const at::Tensor y = loaded.model.forward(x).contiguous();
  touch({static_cast<const std::byte*>(y.const_data_ptr()), y.nbytes()});
}

}  // namespace

void quant_config(io::ByteSpan bytes) {
  rejecting([&] {
    const quant::QuantizationConfig config = quant::parse_quantization_config(io::as_text(bytes), "fuzz");
    if (!(quant::parse_quantization_config(quant::to_json(config), "fuzz") == config)) std::abort();
  });
}

void quant_file(io::ByteSpan bytes) {
  const MemoryFile file(bytes);
  rejecting([&] { run(quant::load_quantized(file.path(), small_network())); });
}

void quant_checkpoint(io::ByteSpan bytes) {
  const std::string_view text = io::as_text(bytes);
  const size_t end = std::min(text.find('\0'), text.size());
  rejecting([&] {
    const MemoryFile file(bytes.subspan(std::min(end + 1, bytes.size())));
    const quant::QuantizationConfig config = quant::parse_quantization_config(text.substr(0, end), "fuzz");
    run(quant::load_checkpoint(io::load_safetensors(file.path()), config, small_network()));
  });
}

void teacher_cache(io::ByteSpan bytes) {
  const auto read = [](const std::string& path) {
    const train::CacheFile cache(path);
    const train::CacheLayout& layout = cache.layout();
    for (size_t row = 0; row < cache.ids().size(); ++row) {
      const io::ByteSpan content = cache.row(static_cast<int64_t>(row));
      touch(content.subspan(static_cast<size_t>(layout.logits_begin()), static_cast<size_t>(layout.logits_bytes())));
      touch(content.first(static_cast<size_t>(layout.logits_begin())));
    }
  };
  std::string mended(io::as_text(bytes));
  try {
    return read(MemoryFile(bytes).path());
  } catch (const c10::ValueError& error) {
    // The message says which checksum is right: "expected the checksum 01234567, found 89abcdef".
    constexpr std::string_view before = "expected the checksum ", between = ", found ";
    const std::string message = error.what_without_backtrace();
    const size_t at = message.find(before);
    if (at == std::string::npos) return;
    const size_t wrong = at + before.size(), stop = message.find(between, wrong), right = stop + between.size();
    const std::string old = message.substr(wrong, stop - wrong);
    const size_t place = mended.find(old);
    if (old.size() != 8 || place == std::string::npos) return;
    mended.replace(place, 8, message, right, 8);
  }
  rejecting([&] { read(MemoryFile(io::as_bytes(mended)).path()); });
}

}  // namespace bellows::fuzz
