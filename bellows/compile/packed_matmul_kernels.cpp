#include "bellows/compile/packed_matmul_kernels.h"

#include <c10/util/StringUtil.h>

#include <utility>

namespace bellows::compile_detail {
namespace {

class PackingKernel final : public graph::Kernel {
 public:
  explicit PackingKernel(MatrixPacking packing) : packing_(std::move(packing)) {}

  std::string name() const override { return packing_.name; }
  std::string identity() const override {
    const kernels::MatrixToPack& m = packing_.matrix;
    return c10::str("pack matrix ", m.dtype, " ", m.inner, " ", m.columns, " ", m.row, " ", m.column, " ",
                    packing_.offset);
  }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void*) const override {
    kernels::MatrixToPack matrix = packing_.matrix;
    matrix.from = static_cast<const char*>(operands[0]) + packing_.offset;
    matrix.to = results[0];
    kernels::pack_matrix(matrix);
  }
  bool may_run_beside() const override { return true; }

 private:
  const MatrixPacking packing_;
};

class MatmulKernel final : public graph::Kernel {
 public:
  explicit MatmulKernel(MatmulWithPacked made) : made_(std::move(made)) {}

  std::string name() const override { return made_.name; }
  size_t scratch_bytes() const override {
    return kernels::packed_matmul_scratch_bytes(made_.matmul.dtype, made_.matmul.rows, made_.matmul.inner);
  }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void* scratch) const override {
    kernels::PackedMatmul matmul = made_.matmul;
    matmul.left = static_cast<const char*>(operands[0]) + made_.left_offset;
    matmul.packed = operands[1];
    if (made_.has_bias) matmul.bias = static_cast<const char*>(operands[2]) + made_.bias_offset;
    if (made_.adds) matmul.added = operands[made_.has_bias ? 3 : 2];
    matmul.result = results[0];
    matmul.scratch = scratch;
    kernels::packed_matmul(matmul);
  }
  bool may_run_beside() const override { return made_.may_run_beside; }

 private:
  const MatmulWithPacked made_;
};

}  // namespace

std::shared_ptr<const graph::Kernel> make_kernel(MatrixPacking packing) {
  return std::make_shared<PackingKernel>(std::move(packing));
}

std::shared_ptr<const graph::Kernel> make_kernel(MatmulWithPacked matmul) {
  return std::make_shared<MatmulKernel>(std::move(matmul));
}

}  // namespace bellows::compile_detail
