// Linear layers with int8 and int4 weights at small batch sizes, against libtorch's kernels and the memory bandwidth.
#include <sys/mman.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/kernels/parallel.h"
#include "bellows/kernels/weight_only_linear.h"
#include "bench/support/bench.h"
#include "bench/support/streams.h"

namespace bellows::bench {

namespace {

/// Each side reads its weights from this much memory in turns, like a model with many layers. It exceeds the caches.
constexpr int64_t working_set = int64_t{512} << 20;

/// Returns memory in large pages, so that all sides use the same kind of pages.
at::Tensor in_large_pages(at::IntArrayRef sizes, c10::ScalarType dtype) {
  constexpr size_t page = size_t{2} << 20;
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  const size_t rounded = (bytes + page - 1) / page * page;
  void* const data = std::aligned_alloc(page, rounded);
  TORCH_CHECK(data != nullptr, "Cannot allocate ", rounded, " bytes for the weights.");
  ::madvise(data, rounded, MADV_HUGEPAGE);
  return at::from_blob(
      data, sizes, [](void* memory) { std::free(memory); }, at::TensorOptions(dtype));
}

/// As many copies of a tensor as fit into the working set: [copies, *].
at::Tensor copies_of(const at::Tensor& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), (working_set + bytes - 1) / bytes);
  return in_large_pages(sizes, tensor.scalar_type()).copy_(tensor.unsqueeze(0).expand(sizes));
}

/// Reads memory in order with all threads: the loop of streams.h that is the fastest here.
class MemoryReader {
 public:
  MemoryReader() : memory_(in_large_pages({working_set / 4}, at::kFloat).fill_(1)) {
    double best = 0;
    for (const StreamKernel& kernel : stream_kernels()) {
      if (kernel.updates + kernel.writes > 0) continue;
      for (int attempt = 0; attempt < 3; ++attempt) {
        const double rate = 1 / seconds_of([&] { read(kernel, working_set); });
        if (rate > best) kernel_ = &kernel;
        best = std::max(best, rate);
      }
    }
  }
  /// Returns the seconds in which this many bytes are read.
  double seconds(double bytes) {
    return seconds_of([&] {
      for (; bytes > 0; bytes -= working_set) read(*kernel_, std::min<double>(bytes, working_set));
    });
  }

 private:
  void read(const StreamKernel& kernel, double bytes) {
    // An odd number of lines: arrays whose distance is a power of two would share the same places in the caches.
    constexpr int64_t line = 16;
    const auto arrays_count = static_cast<int64_t>(kernel.arrays());
    const int64_t lines = (static_cast<int64_t>(bytes) / 64 / arrays_count - 1) | 1;
    std::vector<float*> arrays;
    for (int64_t i = 0; i < arrays_count; ++i) arrays.push_back(memory_.data_ptr<float>() + i * lines * line);
    kernels::parallel_ranges(lines, 1, [&](int64_t begin, int64_t end) {
      const float sum =
          run_stream(kernel, arrays.data(), static_cast<size_t>(begin * line), static_cast<size_t>(end * line));
      TORCH_CHECK(sum >= 0, "The sum of ones is negative.");
    });
  }

  at::Tensor memory_;
  const StreamKernel* kernel_ = nullptr;
};

struct LayerSize {
  int64_t inner, columns;
  std::string name() const { return std::to_string(inner) + " to " + std::to_string(columns) + " features"; }
};

/// A weight in all the forms that the sides read, each with many copies.
struct Layer {
  LayerSize size;
  kernels::WeightFormat format;
  at::Tensor integers;  ///< int8, [columns, inner]
  at::Tensor scales;    ///< [columns, groups]
  at::Tensor packed, fp32, bf16, libtorch;
  at::Tensor libtorch_scales;

  Layer(const LayerSize& layer, int bits) : size(layer) {
    const int64_t group = bits == 8 ? size.inner : 128, half = 1 << (bits - 1);
    format = {.bits = bits, .columns = size.columns, .inner = size.inner, .group_size = group};
    integers = at::randint(-half, half, {size.columns, size.inner}, at::kChar);
    scales = at::rand({size.columns, size.inner / group}) * 0.01 + 0.001;
    const at::Tensor real = (integers.view({size.columns, -1, group}).to(at::kFloat) * scales.unsqueeze(2))
                                .view({size.columns, size.inner});
    fp32 = copies_of(real);
    bf16 = copies_of(real.to(at::kBFloat16));
    pack(half);
  }

 private:
  void pack(int64_t half) {
    at::Tensor values = integers;
    if (format.bits == 4) {
      const at::Tensor pairs = integers.bitwise_and(15).to(at::kByte).view({size.columns, -1, 2});
      values = pairs.select(2, 0).bitwise_or(pairs.select(2, 1).bitwise_left_shift(4)).contiguous();
    }
    const auto bytes = static_cast<int64_t>(kernels::packed_weight_bytes(format));
    const at::Tensor one = in_large_pages({(bytes + 63) / 64 * 64}, at::kByte);
    kernels::pack_weight({format, values.data_ptr(), scales.data_ptr<float>(), nullptr}, one.data_ptr());
    packed = copies_of(one);
    if (format.bits == 8) {
      libtorch = copies_of(integers);
      libtorch_scales = scales.view({size.columns});
    } else {
      libtorch = copies_of(at::_convert_weight_to_int4pack_for_cpu((integers.to(at::kInt) + half).contiguous(), 2));
      libtorch_scales = at::stack({scales.t(), at::zeros_like(scales.t())}, 2).contiguous();
    }
  }
};

at::Tensor run_ours(const Layer& layer, const at::Tensor& x, int64_t copy) {
  const at::Tensor y = at::empty({x.size(0), layer.size.columns}, x.options());
  const auto scratch_bytes = kernels::weight_only_linear_scratch_bytes(x.scalar_type(), layer.format, x.size(0));
  const at::Tensor scratch = at::empty({static_cast<int64_t>(scratch_bytes)}, at::kByte);
  kernels::weight_only_linear({.dtype = x.scalar_type(),
                               .rows = x.size(0),
                               .x = x.data_ptr(),
                               .x_row = layer.size.inner,
                               .format = layer.format,
                               .packed = static_cast<const uint8_t*>(layer.packed.data_ptr()) +
                                         copy % layer.packed.size(0) * layer.packed.size(1),
                               .y = y.data_ptr(),
                               .y_row = layer.size.columns,
                               .scratch = scratch.data_ptr()});
  return y;
}

at::Tensor run_libtorch(const Layer& layer, const at::Tensor& x, const at::Tensor& libtorch_scales, int64_t copy) {
  const at::Tensor weight = layer.libtorch[copy % layer.libtorch.size(0)];
  return layer.format.bits == 8 ? at::_weight_int8pack_mm(x, weight, libtorch_scales)
                                : at::_weight_int4pack_mm_for_cpu(x, weight, layer.format.group_size, libtorch_scales);
}

bool is_close(const at::Tensor& made, const at::Tensor& expected, double tolerance) {
  const double norm = expected.norm().item<double>();
  return (made.to(at::kDouble) - expected).norm().item<double>() < tolerance * norm;
}

/// The work of each side for one call, as a function of the copy.
struct NamedCall {
  std::string name;
  double tolerance;
  std::function<at::Tensor(int64_t)> run;
};

std::vector<NamedCall> calls_of(const Layer& layer, const at::Tensor& x) {
  const std::string integers = "libtorch int" + std::to_string(layer.format.bits);
  const at::Tensor low = x.to(at::kBFloat16), low_scales = layer.libtorch_scales.to(at::kBFloat16);
  return {
      {"ours, fp32 x", 1e-5, [&layer, x](int64_t i) { return run_ours(layer, x, i); }},
      {"ours, bf16 x", 1e-2, [&layer, low](int64_t i) { return run_ours(layer, low, i); }},
      {"libtorch fp32", 1e-5, [&layer, x](int64_t i) { return at::linear(x, layer.fp32[i % layer.fp32.size(0)]); }},
      {"libtorch bf16", 2e-2, [&layer, low](int64_t i) { return at::linear(low, layer.bf16[i % layer.bf16.size(0)]); }},
      {integers + ", fp32 x", 1e-5,
       [&layer, x](int64_t i) { return run_libtorch(layer, x, layer.libtorch_scales, i); }},
      {integers + ", bf16 x", 2e-2,
       [&layer, low, low_scales](int64_t i) { return run_libtorch(layer, low, low_scales, i); }}};
}

/// The share of the memory bandwidth that one of our sides reaches.
std::string bandwidth_note(const Side& ours, const Side& memory, double bytes) {
  const RatioInterval share = paired_ratio(memory.windows, ours.windows);
  char note[160];
  std::snprintf(note, sizeof note, "%s: %.1f GB/s, %.0f %% (%.0f to %.0f %%) of the memory's %.1f GB/s; ",
                ours.name.c_str(), bytes / ours.seconds() / 1e9, 100 * share.ratio, 100 * share.low, 100 * share.high,
                bytes / memory.seconds() / 1e9);
  return note;
}

Row measure(const Layer& layer, int64_t batch, MemoryReader& memory, const Options& options) {
  const c10::NoGradGuard no_grad;
  const at::Tensor x = at::randn({batch, layer.size.inner});
  const at::Tensor expected = at::linear(x.to(at::kDouble), layer.fp32[0].to(at::kDouble));
  const auto bytes = static_cast<double>(kernels::packed_weight_bytes(layer.format));
  std::vector<Contestant> sides;
  bool equal = true;
  for (const NamedCall& call : calls_of(layer, x)) {
    equal = equal && is_close(call.run(0), expected, call.tolerance);
    sides.push_back({call.name, [call, at = int64_t{0}](int64_t n) mutable {
                       return seconds_of([&] {
                         for (int64_t i = 0; i < n; ++i) call.run(at++);
                       });
                     }});
  }
  sides.push_back({"memory", [&](int64_t n) { return memory.seconds(static_cast<double>(n) * bytes); }});
  Comparison comparison =
      compare(sides, {.window_s = 0.03, .windows = options.quick ? 5 : 15, .budget_s = options.quick ? 6. : 60.});
  const Side read = comparison.sides.back();
  comparison.sides.pop_back();
  const Side low = comparison.sides[1];
  comparison.sides.erase(comparison.sides.begin() + 1);
  Row row = time_row(std::string(layer.format.bits == 8 ? "int8" : "int4, groups of 128") + ", " + layer.size.name() +
                         ", batch " + std::to_string(batch),
                     "time per call", "us", comparison, equal);
  row.limit = read.seconds() * 1e6;
  row.note = bandwidth_note(comparison.ours(), read, bytes) + bandwidth_note(low, read, bytes);
  row.sides.push_back(low);
  row.sides.push_back(read);
  return row;
}

int run(const Options& options) {
  Report report("weight_only", options);
  torch::manual_seed(1);
  MemoryReader memory;
  for (const LayerSize& size : {LayerSize{4096, 4096}, LayerSize{4096, 11008}, LayerSize{768, 3072}}) {
    for (const int bits : {8, 4}) {
      if (!report.has_time_for(size.name())) return report.finish();
      const Layer layer(size, bits);
      for (const int64_t batch : {1, 2, 4, 8}) {
        if (report.has_time_for(size.name())) report.add(measure(layer, batch, memory, options));
      }
    }
  }
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Times linear layers with int8 weights (one scale per channel) and int4 weights (one scale per 128) at batch\n"
      "sizes 1 to 8. It compares them with libtorch's linear layers in fp32 and bf16, and with libtorch's kernels\n"
      "for such weights. Each side reads its weights from 512 MiB, which exceeds most caches. The limit is the\n"
      "time in which all threads only read the bytes of the weight, measured in the same rounds.",
      run);
}
