// Convolutions as matrix products, from libtorch's own BLAS: for many channels and few places, where weights are most of what is read,
// packing them costs more than it saves.
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

#include "bellows/compile/onednn_layers_impl.h"

namespace bellows::compile_detail::onednn {
namespace {

/// Rows are the result's places; columns an input's channels and the weight's places, in the order of a plain weight.
struct Windows {
  explicit Windows(const Convolution& of)
      : batch(of.input[0]),
        channels(of.input[1]),
        height(of.input[2]),
        width(of.input[3]),
        out_channels(of.output[1]),
        out_height(of.output[2]),
        out_width(of.output[3]),
        kernel{of.weight[2], of.weight[3]},
        shape(of) {}

  int64_t rows() const { return batch * out_height * out_width; }
  int64_t taps() const { return kernel[0] * kernel[1]; }
  int64_t columns() const { return channels * taps(); }
  size_t bytes() const { return static_cast<size_t>(rows() * columns()) * sizeof(float); }

  /// Calls with the number of each tap that lies inside of the image, and where in it the channels are.
  template <class Tap>
  void for_taps(int64_t row, const Tap& tap) const {
    const int64_t x = row % out_width, y = row / out_width % out_height, n = row / (out_width * out_height);
    for (int64_t i = 0; i < kernel[0]; ++i) {
      const int64_t down = y * shape.stride[0] - shape.padding[0] + i * shape.dilation[0];
      for (int64_t j = 0; j < kernel[1]; ++j) {
        const int64_t right = x * shape.stride[1] - shape.padding[1] + j * shape.dilation[1];
        if (down < 0 || down >= height || right < 0 || right >= width) continue;
        tap(i * kernel[1] + j, ((n * height + down) * width + right) * channels);
      }
    }
  }

  void gather(const float* image, float* windows) const {
    at::parallel_for(0, rows(), 4, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        float* const to = windows + row * columns();
        std::fill(to, to + columns(), 0.0F);
        for_taps(row, [&](int64_t tap, int64_t place) {
          for (int64_t c = 0; c < channels; ++c) to[c * taps() + tap] = image[place + c];
        });
      }
    });
  }

  void scatter(const float* windows, float* image) const {
    const int64_t of_sample = height * width * channels, rows_of_sample = out_height * out_width;
    at::parallel_for(0, batch, 1, [&](int64_t first, int64_t last) {
      std::fill(image + first * of_sample, image + last * of_sample, 0.0F);
      for (int64_t row = first * rows_of_sample; row < last * rows_of_sample; ++row) {
        const float* const from = windows + row * columns();
        for_taps(row, [&](int64_t tap, int64_t place) {
          for (int64_t c = 0; c < channels; ++c) image[place + c] += from[c * taps() + tap];
        });
      }
    });
  }

  int64_t batch, channels, height, width, out_channels, out_height, out_width;
  int64_t kernel[2];
  Convolution shape;
};

at::Tensor matrix(void* memory, int64_t rows, int64_t columns) {
  return at::from_blob(memory, {rows, columns}, at::kFloat);
}

void multiply(const at::Tensor& to, const at::Tensor& a, const at::Tensor& b) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard untapped(
      c10::DispatchKeySet{c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
  at::Tensor result = to;
  at::mm_out(result, a, b);
}

class ForwardProduct final : public graph::Kernel {
 public:
  ForwardProduct(const Convolution& shape, std::vector<PostOp> post, bool scaled)
      : windows_(shape), post_(std::move(post)), scaled_(scaled) {}
  std::string name() const override { return "convolution as product"; }
  size_t scratch_bytes() const override { return windows_.bytes(); }

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void* scratch) const override {
    windows_.gather(static_cast<const float*>(operands[0]), static_cast<float*>(scratch));
    const int64_t rows = windows_.rows(), columns = windows_.columns(), channels = windows_.out_channels;
    multiply(matrix(results[0], rows, channels), matrix(scratch, rows, columns),
             matrix(operands[1], channels, columns).t());
    finish(operands, static_cast<float*>(results[0]));
  }

 private:
  void finish(std::span<void* const> operands, float* result) const {
    const int64_t rows = windows_.rows(), channels = windows_.out_channels;
    size_t next = 2;
    const auto* const factor = scaled_ ? static_cast<const float*>(operands[next++]) : nullptr;
    const auto* const bias = windows_.shape.bias ? static_cast<const float*>(operands[next++]) : nullptr;
    if (!factor && !bias && post_.empty()) return;
    for (int64_t row = 0; row < rows; ++row) {
      float* const y = result + row * channels;
      size_t added = next;
      if (factor) each(channels, [&](int64_t c) { y[c] *= factor[c]; });
      if (bias) each(channels, [&](int64_t c) { y[c] += bias[c]; });
      for (const PostOp& one : post_) {
        if (one.kind == PostOp::Kind::relu) {
          each(channels, [&](int64_t c) { y[c] = y[c] > 0 || y[c] != y[c] ? y[c] : 0; });
        } else {
          const float* const other = static_cast<const float*>(operands[added++]) + row * channels;
          each(channels, [&](int64_t c) { y[c] += other[c]; });
        }
      }
    }
  }
  template <class Body>
  static void each(int64_t count, const Body& body) {
    for (int64_t i = 0; i < count; ++i) body(i);
  }

  Windows windows_;
  std::vector<PostOp> post_;
  bool scaled_;
};

class DataProduct final : public graph::Kernel {
 public:
  explicit DataProduct(const Convolution& shape) : windows_(shape) {}
  std::string name() const override { return "convolution backward data as product"; }
  size_t scratch_bytes() const override { return windows_.bytes(); }

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void* scratch) const override {
    const int64_t rows = windows_.rows(), columns = windows_.columns(), channels = windows_.out_channels;
    multiply(matrix(scratch, rows, columns), matrix(operands[0], rows, channels),
             matrix(operands[1], channels, columns));
    windows_.scatter(static_cast<const float*>(scratch), static_cast<float*>(results[0]));
  }

 private:
  Windows windows_;
};

class WeightProduct final : public graph::Kernel {
 public:
  explicit WeightProduct(const Convolution& shape) : windows_(shape) {}
  std::string name() const override { return "convolution backward weight as product"; }
  size_t scratch_bytes() const override { return windows_.bytes(); }

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void* scratch) const override {
    windows_.gather(static_cast<const float*>(operands[1]), static_cast<float*>(scratch));
    const int64_t rows = windows_.rows(), columns = windows_.columns(), channels = windows_.out_channels;
    multiply(matrix(results[0], channels, columns), matrix(operands[0], rows, channels).t(),
             matrix(scratch, rows, columns));
    if (!windows_.shape.bias) return;
    const auto* const gradient = static_cast<const float*>(operands[0]);
    auto* const bias = static_cast<float*>(results[1]);
    std::fill(bias, bias + channels, 0.0F);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t c = 0; c < channels; ++c) bias[c] += gradient[row * channels + c];
    }
  }

 private:
  Windows windows_;
};

Desc plain_weight(const Convolution& shape) {
  return {shape.weight, shape.type, memory::format_tag::abcd};
}

}  // namespace

bool prefers_product(const Convolution& shape) {
  const int64_t places = shape.output[0] * shape.output[2] * shape.output[3];
  return !shape.transposed && shape.weight.size() == 4 && shape.type == memory::data_type::f32 &&
         shape.output[1] >= 8 * places;
}

ConvolutionPass product_forward(const Convolution& shape, const std::vector<PostOp>& post, bool scaled) {
  return {std::make_shared<ForwardProduct>(shape, post, scaled), plain_weight(shape), /*scales=*/true};
}

ConvolutionPass product_backward_data(const Convolution& shape) {
  return {std::make_shared<DataProduct>(shape), plain_weight(shape)};
}

ConvolutionPass product_backward_weight(const Convolution& shape) {
  return {std::make_shared<WeightProduct>(shape), plain_weight(shape)};
}

}  // namespace bellows::compile_detail::onednn
