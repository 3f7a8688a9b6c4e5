#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "bellows/graph/program/program.h"
#include "bellows/kernels/packed_matmul.h"

namespace bellows::compile_detail {

/// A kernel of a program that packs a matrix (kernels::pack_matrix()). Operands: the matrix. Results: the packed matrix.
struct MatrixPacking {
  std::string name{};
  kernels::MatrixToPack matrix{};  ///< without pointers
  size_t offset = 0;               ///< of the matrix in its operand, in bytes
};
std::shared_ptr<const graph::Kernel> make_kernel(MatrixPacking packing);

/// A kernel of a program that multiplies with a packed matrix (kernels::packed_matmul()). Operands: the left matrix, the
/// packed matrix, the bias if there is one, and the added matrix if there is one.
struct MatmulWithPacked {
  std::string name{};
  kernels::PackedMatmul matmul{};  ///< without pointers
  bool has_bias = false, adds = false;
  size_t left_offset = 0, bias_offset = 0;  ///< in their operands, in bytes
  bool may_run_beside = false;              ///< see graph::Kernel
};
std::shared_ptr<const graph::Kernel> make_kernel(MatmulWithPacked matmul);

}  // namespace bellows::compile_detail
