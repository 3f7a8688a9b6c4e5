// Convolutions as matmuls with plain weights. With many channels and few places, most of the memory traffic is reading
// weights. Packing them then costs more than it saves.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/BFloat16.h>

#include <algorithm>

#include "bellows/compile/onednn/primitives_impl.h"
#include "bellows/core/round_up.h"
#include "bellows/kernels/parallel.h"

namespace bellows::compile_detail::onednn {
namespace {

/// The matrix of windows. A row is a place of the result. A column is an input channel and a place of the weight, in
/// the order of a plain weight.
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
  int64_t image() const { return batch * height * width * channels; }

  /// Calls tap(number, position) for each place of the weight that lies inside the image.
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

  template <class Number>
  void gather(const Number* image, Number* windows) const {
    kernels::parallel_ranges(rows(), 4, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        Number* const to = windows + row * columns();
        std::fill(to, to + columns(), Number(0));
        for_taps(row, [&](int64_t tap, int64_t place) {
          for (int64_t c = 0; c < channels; ++c) to[c * taps() + tap] = image[place + c];
        });
      }
    });
  }

  void scatter(const float* windows, float* image) const {
    const int64_t of_sample = height * width * channels, rows_of_sample = out_height * out_width;
    kernels::parallel_ranges(batch, 1, [&](int64_t first, int64_t last) {
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

enum class Lines : uint8_t { rows, columns };

/// Params: lines – whether rows or columns are contiguous
Desc matrix(int64_t rows, int64_t columns, memory::data_type type, Lines lines = Lines::rows) {
  return lines == Lines::rows ? Desc({rows, columns}, type, {columns, 1}) : Desc({rows, columns}, type, {1, rows});
}

class BlasProduct final : public graph::Kernel {
 public:
  BlasProduct(Desc a, Desc b, Desc result) : descs_{std::move(a), std::move(b), std::move(result)} {}
  std::string name() const override { return "blas"; }

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void*) const override {
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::impl::ExcludeDispatchKeyGuard untapped(
        c10::DispatchKeySet{c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
    at::Tensor result = matrix_at(results[0], descs_[2]);
    at::mm_out(result, matrix_at(operands[0], descs_[0]), matrix_at(operands[1], descs_[1]));
  }

 private:
  static at::Tensor matrix_at(void* memory, const Desc& desc) {
    return at::from_blob(memory, desc.get_dims(), desc.get_strides(), at::kFloat);
  }
  Desc descs_[3];
};

/// For fp32 sums with fewer terms, libtorch's BLAS is faster; measured for 32 to 1024 terms.
constexpr int64_t few_terms = 2048;

/// A kernel that computes a · b from two operands.
KernelPointer product_of(const Desc& a, const Desc& b, const Desc& result) {
  if (a.get_data_type() == memory::data_type::f32 && a.get_dims()[1] < few_terms)
    return std::make_shared<BlasProduct>(a, b, result);
  const dnnl::matmul::primitive_desc desc(engine(), a, b, result, attributes(), /*allow_empty=*/true);
  if (!is_fast(desc)) return {};
  std::vector<PrimitiveKernel::Slot> slots{{DNNL_ARG_SRC, a, PrimitiveKernel::Place::operand, 0},
                                           {DNNL_ARG_WEIGHTS, b, PrimitiveKernel::Place::operand, 1},
                                           {DNNL_ARG_DST, result, PrimitiveKernel::Place::result, 0}};
  return std::make_shared<PrimitiveKernel>(desc.impl_info_str(), dnnl::matmul(desc), std::move(slots),
                                           desc.scratchpad_desc());
}

/// A matmul with windows that are gathered from an image, or scattered to one. Scratch memory contains the windows,
/// then the result.
class WindowProduct : public graph::Kernel {
 public:
  std::string name() const override { return what_ + (" as product " + product_->name()); }
  size_t scratch_bytes() const override { return second_ + third_ + product_->scratch_bytes(); }

 protected:
  WindowProduct(const char* what, const Convolution& shape, KernelPointer product, size_t first_bytes,
                size_t second_bytes)
      : windows_(shape),
        what_(what),
        product_(std::move(product)),
        second_(round_up(first_bytes, 64)),
        third_(round_up(second_bytes, 64)) {}

  template <class Number>
  Number* first(void* scratch) const {
    return static_cast<Number*>(scratch);
  }
  float* second(void* scratch) const { return reinterpret_cast<float*>(static_cast<char*>(scratch) + second_); }
  void multiply(const void* a, const void* b, void* result, void* scratch) const {
    void* const operands[] = {const_cast<void*>(a), const_cast<void*>(b)};
    void* const results[] = {result};
    product_->run(operands, results, {}, static_cast<char*>(scratch) + second_ + third_);
  }

  Windows windows_;

 private:
  std::string what_;
  KernelPointer product_;
  size_t second_, third_;
};

size_t elements(const Windows& windows) {
  return static_cast<size_t>(windows.rows() * windows.columns());
}

/// The matmul has one row per output channel, like the weight in memory, so that the weight is read once.
template <class Number>
class ForwardProduct final : public WindowProduct {
 public:
  static auto product(const Convolution& shape) {
    const Windows w(shape);
    return product_of(matrix(w.out_channels, w.columns(), shape.type),
                      matrix(w.columns(), w.rows(), shape.type, Lines::columns),
                      matrix(w.out_channels, w.rows(), memory::data_type::f32));
  }
  ForwardProduct(const Convolution& shape, KernelPointer product, std::vector<PostOp> post, bool scaled)
      : WindowProduct("convolution", shape, std::move(product), elements(Windows(shape)) * sizeof(Number),
                      static_cast<size_t>(Windows(shape).rows() * shape.output[1]) * sizeof(float)),
        post_(std::move(post)),
        scaled_(scaled) {}

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void* scratch) const override {
    auto* const windows = first<Number>(scratch);
    windows_.gather(static_cast<const Number*>(operands[0]), windows);
    multiply(operands[1], windows, second(scratch), scratch);
    const int64_t channels = windows_.out_channels;
    kernels::parallel_ranges(windows_.rows(), std::max<int64_t>(1, 16384 / channels), [&](int64_t begin, int64_t end) {
      std::vector<float> line(static_cast<size_t>(channels));
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t c = 0; c < channels; ++c) line[c] = second(scratch)[c * windows_.rows() + row];
        finish(operands, row * channels, line);
        std::copy(line.begin(), line.end(), static_cast<Number*>(results[0]) + row * channels);
      }
    });
  }

 private:
  void finish(std::span<void* const> operands, int64_t place, std::vector<float>& line) const {
    size_t next = 2;
    const auto with_next = [&](int64_t from, const auto& change) {
      const auto* const other = static_cast<const Number*>(operands[next++]) + from;
      for (size_t c = 0; c < line.size(); ++c) change(line[c], static_cast<float>(other[c]));
    };
    if (scaled_) with_next(0, [](float& y, float factor) { y *= factor; });
    if (windows_.shape.bias) with_next(0, [](float& y, float bias) { y += bias; });
    for (const PostOp& one : post_) {
      if (one.is_add())
        with_next(place, [](float& y, float other) { y += other; });
      else
        for (float& y : line) y = y > 0 || y != y ? y : 0;
    }
  }

  std::vector<PostOp> post_;
  bool scaled_;
};

template <class Number>
class DataProduct final : public WindowProduct {
 public:
  static auto product(const Convolution& shape) {
    const Windows w(shape);
    return product_of(matrix(w.rows(), w.out_channels, shape.type), matrix(w.out_channels, w.columns(), shape.type),
                      matrix(w.rows(), w.columns(), memory::data_type::f32));
  }
  DataProduct(const Convolution& shape, KernelPointer product)
      : WindowProduct("convolution backward data", shape, std::move(product), elements(Windows(shape)) * sizeof(float),
                      rounds ? static_cast<size_t>(Windows(shape).image()) * sizeof(float) : 0) {}

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void* scratch) const override {
    auto* const windows = first<float>(scratch);
    multiply(operands[0], operands[1], windows, scratch);
    float* const image = rounds ? second(scratch) : static_cast<float*>(results[0]);
    windows_.scatter(windows, image);
    if (rounds) std::copy(image, image + windows_.image(), static_cast<Number*>(results[0]));
  }

 private:
  static constexpr bool rounds = !std::is_same_v<Number, float>;  ///< sums are computed in float and then rounded
};

template <class Number>
class WeightProduct final : public WindowProduct {
 public:
  static auto product(const Convolution& shape) {
    const Windows w(shape);
    return product_of(matrix(w.out_channels, w.rows(), shape.type, Lines::columns),
                      matrix(w.rows(), w.columns(), shape.type),
                      matrix(w.out_channels, w.columns(), shape.gradient_type()));
  }
  WeightProduct(const Convolution& shape, KernelPointer product)
      : WindowProduct("convolution backward weight", shape, std::move(product),
                      elements(Windows(shape)) * sizeof(Number), 0) {}

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void* scratch) const override {
    auto* const windows = first<Number>(scratch);
    windows_.gather(static_cast<const Number*>(operands[1]), windows);
    multiply(operands[0], windows, results[0], scratch);
    if (!windows_.shape.bias) return;
    const auto* const gradient = static_cast<const Number*>(operands[0]);
    std::vector<float> sum(static_cast<size_t>(windows_.out_channels));
    for (int64_t row = 0; row < windows_.rows(); ++row) {
      for (size_t c = 0; c < sum.size(); ++c) sum[c] += static_cast<float>(gradient[row * windows_.out_channels + c]);
    }
    std::copy(sum.begin(), sum.end(), static_cast<Number*>(results[1]));
  }
};

template <template <class> class Kernel, class... Others>
std::optional<LayerPass> pass_of(const Convolution& shape, memory::data_type weight, const Others&... others) {
  const bool fp32 = shape.type == memory::data_type::f32;
  auto product = fp32 ? Kernel<float>::product(shape) : Kernel<c10::BFloat16>::product(shape);
  if (!product) return {};
  KernelPointer kernel;
  if (fp32)
    kernel = std::make_shared<Kernel<float>>(shape, std::move(product), others...);
  else
    kernel = std::make_shared<Kernel<c10::BFloat16>>(shape, std::move(product), others...);
  return LayerPass{std::move(kernel), Desc(shape.weight, weight, memory::format_tag::abcd)};
}

}  // namespace

/// Based on measurements of the convolutions of training steps, including packing, on AVX-512 and AMX. In bf16, matmuls
/// are faster for more shapes.
bool prefers_product(const Convolution& shape) {
  const int64_t places = shape.output[0] * shape.output[2] * shape.output[3];
  const int64_t times = shape.type == memory::data_type::f32 ? 8 : 2;
  return !shape.transposed && shape.weight.size() == 4 && shape.output[1] >= times * places;
}

std::optional<LayerPass> product_forward(const Convolution& shape, const std::vector<PostOp>& post, bool scaled) {
  auto pass = pass_of<ForwardProduct>(shape, shape.type, post, scaled);
  if (pass) pass->scales = true;
  return pass;
}

std::optional<LayerPass> product_backward_data(const Convolution& shape) {
  return pass_of<DataProduct>(shape, shape.type);
}

std::optional<LayerPass> product_backward_weight(const Convolution& shape) {
  return pass_of<WeightProduct>(shape, shape.gradient_type());
}

}  // namespace bellows::compile_detail::onednn
