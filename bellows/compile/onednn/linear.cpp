#include <dlfcn.h>

#include <algorithm>
#include <cstring>

#include "bellows/compile/onednn/primitives_impl.h"
#include "bellows/compile/packed_matmul_kernels.h"
#include "bellows/kernels/parallel.h"

namespace bellows::compile_detail::onednn {
namespace {

// Constants from MKL's cblas.h. libtorch contains and exports MKL without this header.
constexpr int row_major = 101, plain = 111, transposed = 112, packed = 151, second_matrix = 162;

/// MKL functions for matmuls with a matrix that is packed once. Null in builds of libtorch with another BLAS.
struct PackedProducts {
  size_t (*size)(int which, int m, int n, int k);
  void (*pack)(int layout, int which, int trans, int m, int n, int k, float alpha, const float* from, int stride,
               float* to);
  void (*compute)(int layout, int trans_a, int trans_b, int m, int n, int k, const float* a, int stride_a,
                  const float* b, int stride_b, float beta, float* c, int stride_c);
};

template <class Function>
void find(const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

const PackedProducts& packed_products() {
  static const PackedProducts found = [] {
    PackedProducts made{};
    find("cblas_sgemm_pack_get_size", made.size);
    find("cblas_sgemm_pack", made.pack);
    find("cblas_sgemm_compute", made.compute);
    return made;
  }();
  return found;
}

/// Has no identity, because packed matrices of MKL contain addresses: they must not be stored in files.
class Pack final : public graph::Kernel {
 public:
  Pack(const Linear& shape, bool by_columns, memory::dim stride)
      : shape_(shape), trans_(by_columns ? transposed : plain), stride_(static_cast<int>(stride)) {}
  std::string name() const override { return "pack weight"; }

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void*) const override {
    packed_products().pack(row_major, second_matrix, trans_, static_cast<int>(shape_.rows),
                           static_cast<int>(shape_.columns), static_cast<int>(shape_.inner), 1,
                           static_cast<const float*>(operands[0]), stride_, static_cast<float*>(results[0]));
  }

 private:
  Linear shape_;
  int trans_, stride_;
};

class PackedLinear final : public graph::Kernel {
 public:
  PackedLinear(const Linear& shape, bool adds) : shape_(shape), adds_(adds) {}
  std::string name() const override { return adds_ ? "linear add blas" : "linear blas"; }

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void*) const override {
    const auto* const input = reinterpret_cast<const float*>(static_cast<const char*>(operands[0]) + shape_.offset);
    auto* const result = static_cast<float*>(results[0]);
    const bool onto = shape_.bias || adds_;
    if (onto) begin(operands, result);
    const auto columns = static_cast<int>(shape_.columns);
    packed_products().compute(row_major, plain, packed, static_cast<int>(shape_.rows), columns,
                              static_cast<int>(shape_.inner), input, static_cast<int>(shape_.row_stride),
                              static_cast<const float*>(operands[1]), columns, onto ? 1.0F : 0.0F, result, columns);
  }

 private:
  /// Initializes the result with the bias and the added operand.
  void begin(std::span<void* const> operands, float* result) const {
    const float* const bias = shape_.bias ? static_cast<const float*>(operands[2]) : nullptr;
    const float* const added = adds_ ? static_cast<const float*>(operands[shape_.bias ? 3 : 2]) : nullptr;
    const size_t columns = shape_.columns;
    kernels::parallel_ranges(shape_.rows, std::max<int64_t>(1, 32768 / shape_.columns),
                             [&](int64_t first, int64_t last) {
                               for (int64_t row = first; row < last; ++row) {
                                 float* const to = result + row * columns;
                                 std::memcpy(to, added ? added + row * columns : bias, columns * sizeof(float));
                                 if (!added || !bias) continue;
                                 for (size_t i = 0; i < columns; ++i) to[i] += bias[i];
                               }
                             });
  }

  Linear shape_;
  bool adds_;
};

}  // namespace

bool prefers_blas(const Linear& shape) {
  constexpr memory::dim least_rows = 64, least_weights = 512 * 512;
  return __builtin_cpu_is("intel") && packed_products().compute && shape.type == memory::data_type::f32 &&
         shape.rows >= least_rows && shape.inner * shape.columns >= least_weights &&
         std::max({shape.rows, shape.inner, shape.columns, shape.row_stride}) <= INT32_MAX;
}

std::optional<PackingLinear> blas_linear(const Linear& shape, bool adds, const memory::dims& strides) {
  const bool by_columns = strides[0] == 1;
  const memory::dim stride = strides[by_columns ? 1 : 0], least = by_columns ? shape.inner : shape.columns;
  if ((!by_columns && strides[1] != 1) || stride < least || stride > INT32_MAX) return {};
  const size_t bytes = packed_products().size(second_matrix, static_cast<int>(shape.rows),
                                              static_cast<int>(shape.columns), static_cast<int>(shape.inner));
  return PackingLinear{std::make_shared<Pack>(shape, by_columns, stride), std::make_shared<PackedLinear>(shape, adds),
                       bytes};
}

PackingLinear row_linear(const Linear& shape, bool adds, const memory::dims& strides, size_t offset) {
  const MatrixPacking packing{
      .name = "pack weight",
      .matrix = {.inner = shape.inner, .columns = shape.columns, .row = strides[0], .column = strides[1]},
      .offset = offset};
  const MatmulWithPacked matmul{
      .name = adds ? "linear add by rows" : "linear by rows",
      .matmul = {.rows = shape.rows, .inner = shape.inner, .columns = shape.columns, .left_row = shape.row_stride},
      .has_bias = shape.bias,
      .adds = adds,
      .left_offset = shape.offset};
  return {make_kernel(packing), make_kernel(matmul), kernels::packed_bytes(c10::kFloat, shape.inner, shape.columns)};
}

std::optional<LayerPass> linear_forward(const Linear& shape, const std::vector<PostOp>& post) {
  constexpr auto from = PrimitiveKernel::Place::operand, to = PrimitiveKernel::Place::result;
  const Desc input({shape.rows, shape.inner}, shape.type, {shape.row_stride, 1}),
      weight({shape.inner, shape.columns}, shape.type, memory::format_tag::any),
      bias(shape.bias ? Desc({1, shape.columns}, shape.type, memory::format_tag::ab) : Desc()),
      output({shape.rows, shape.columns}, shape.type, memory::format_tag::ab);
  const dnnl::matmul::primitive_desc desc(engine(), input, weight, bias, output, attributes(post, output),
                                          /*allow_empty=*/true);
  if (!is_fast(desc)) return {};
  std::vector<PrimitiveKernel::Slot> slots{{DNNL_ARG_SRC, input, from, 0, shape.offset},
                                           {DNNL_ARG_WEIGHTS, desc.weights_desc(), from, 1},
                                           {DNNL_ARG_DST, output, to, 0}};
  if (shape.bias) slots.push_back({DNNL_ARG_BIAS, bias, from, 2});
  add_slots(slots, post, output, shape.bias ? 3 : 2);
  return LayerPass{std::make_shared<PrimitiveKernel>("linear" + name_of(post) + " " + desc.impl_info_str(),
                                                     dnnl::matmul(desc), std::move(slots), desc.scratchpad_desc()),
                   desc.weights_desc()};
}

}  // namespace bellows::compile_detail::onednn
