#include "bellows/compile/shared_matmul.h"

#include <algorithm>
#include <map>
#include <memory>
#include <sstream>

#include "bellows/graph/passes/expression_maker.h"
#include "bellows/graph/program/program_edit.h"
#include "bellows/kernels/packed_matmul.h"

namespace bellows::compile_detail {
namespace {

using graph::Geometry;
using graph::Instruction;
using graph::Operand;
using graph::detail::is_one;
using graph::detail::kernel_instruction;

/// For fewer matmuls, packing takes longer than it saves.
constexpr size_t fewest_matmuls = 4;
/// Matmuls of more rows are as fast in BLAS.
constexpr int64_t most_matmul_rows = 256;
/// A larger packed matrix would not stay in the cache.
constexpr size_t most_packed_bytes = 4 << 20;

template <class T>
T* first_element(void* buffer, const Geometry& geometry) {
  return reinterpret_cast<T*>(static_cast<char*>(buffer) +
                              geometry.offset * static_cast<int64_t>(geometry.dtype.itemsize()));
}

class MatrixPacking final : public graph::Kernel {
 public:
  explicit MatrixPacking(Geometry matrix) : matrix_(std::move(matrix)) {}

  std::string name() const override { return "pack matrix"; }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void*) const override {
    kernels::pack_matrix({.dtype = matrix_.dtype.toScalarType(),
                          .inner = matrix_.sizes[0],
                          .columns = matrix_.sizes[1],
                          .row = matrix_.strides[0],
                          .column = matrix_.strides[1],
                          .from = first_element<const char>(operands[0], matrix_),
                          .to = results[0]});
  }
  bool may_run_beside() const override { return true; }

 private:
  const Geometry matrix_;
};

/// Operands: the left matrix, the packed matrix, and the bias if there is one.
class SharedMatmul final : public graph::Kernel {
 public:
  SharedMatmul(Geometry left, int64_t columns, int64_t bias_offset)
      : left_(std::move(left)),
        columns_(columns),
        bias_offset_(bias_offset * static_cast<int64_t>(left_.dtype.itemsize())) {}

  std::string name() const override { return "matmul with shared matrix"; }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void* scratch) const override {
    kernels::packed_matmul(
        {.dtype = left_.dtype.toScalarType(),
         .rows = left_.sizes[0],
         .inner = left_.sizes[1],
         .columns = columns_,
         .left_row = left_.strides[0],
         .left_column = left_.strides[1],
         .left = first_element<const char>(operands[0], left_),
         .packed = operands[1],
         .bias = operands.size() > 2 ? static_cast<const char*>(operands[2]) + bias_offset_ : nullptr,
         .result = results[0],
         .scratch = scratch});
  }
  size_t scratch_bytes() const override {
    return kernels::packed_matmul_scratch_bytes(left_.dtype.toScalarType(), left_.sizes[0], left_.sizes[1]);
  }
  bool may_run_beside() const override { return true; }

 private:
  const Geometry left_;
  const int64_t columns_, bias_offset_;
};

bool is_supported(const Geometry& geometry) {
  return graph::detail::is_dense(geometry) && c10::isFloatingType(geometry.dtype.toScalarType());
}

class MatmulSharer {
 public:
  explicit MatmulSharer(graph::Program& program) : program_(program) {}

  int64_t run() {
    std::map<std::string, std::vector<int>> alike;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Operand* const right = right_of(program_.instructions[i]);
      if (!right) continue;
      std::ostringstream key;
      key << right->value << " " << right->geometry.text();
      alike[key.str()].push_back(static_cast<int>(i));
    }
    int64_t fired = 0;
    std::map<int, Instruction> packing;  // by the instruction before which it runs
    for (const auto& [key, matmuls] : alike) {
      if (matmuls.size() < fewest_matmuls) continue;
      packing[matmuls[0]] = pack(matmuls[0]);
      const Operand packed = packing[matmuls[0]].results[0].operands[0];
      for (const int at : matmuls) replace(program_.instructions[at], packed);
      fired += static_cast<int64_t>(matmuls.size());
    }
    if (fired) insert(packing);
    return fired;
  }

 private:
  static bool adds(const Instruction& one) { return graph::detail::calls(one, "aten::addmm"); }

  /// Returns the right-hand matrix of a matmul that a kernel can replace, otherwise null.
  const Operand* right_of(const Instruction& one) const {
    const bool has_bias = adds(one);
    if ((!has_bias && !graph::detail::calls(one, "aten::mm")) || !graph::detail::is_pure(one)) return nullptr;
    const Operand &left = one.arguments[has_bias].operands[0], &right = one.arguments[1 + has_bias].operands[0],
                  &result = one.results[0].operands[0];
    const size_t bytes =
        kernels::packed_bytes(right.geometry.dtype.toScalarType(), right.geometry.sizes[0], right.geometry.sizes[1]);
    if (!is_supported(left.geometry) || right.geometry.dtype != left.geometry.dtype ||
        result.geometry.dtype != left.geometry.dtype || !is_supported(right.geometry) ||
        !graph::detail::is_row_major(result.geometry) || left.geometry.sizes[0] > most_matmul_rows ||
        c10::multiply_integers(result.geometry.sizes) == 0 || left.geometry.sizes[1] == 0 || bytes > most_packed_bytes)
      return nullptr;
    if (!has_bias) return &right;
    const Geometry& bias = one.arguments[0].operands[0].geometry;
    const bool plain = bias.sizes.size() == 1 && bias.sizes[0] == right.geometry.sizes[1] &&
                       (bias.strides[0] == 1 || bias.sizes[0] == 1) && bias.dtype == left.geometry.dtype &&
                       is_supported(bias) && is_one(one.arguments[3]) && is_one(one.arguments[4]);
    return plain ? &right : nullptr;
  }

  Instruction pack(int at) {
    const Instruction& first = program_.instructions[at];
    const Operand& right = *right_of(first);
    const auto type = right.geometry.dtype.toScalarType();
    const size_t bytes = kernels::packed_bytes(type, right.geometry.sizes[0], right.geometry.sizes[1]);
    Geometry packed = right.geometry;
    packed.dtype = c10::scalarTypeToTypeMeta(type == c10::kDouble ? c10::kDouble : c10::kFloat);
    packed.sizes = {static_cast<int64_t>(bytes / packed.dtype.itemsize())};
    packed.strides = {1};
    packed.offset = 0;
    const Operand result{graph::detail::add_value(program_, packed, bytes), packed};
    Instruction made =
        kernel_instruction(first, std::make_shared<MatrixPacking>(right.geometry), "matmul", {right}, {result});
    made.late = false;
    return made;
  }

  static void replace(Instruction& one, const Operand& packed) {
    const bool has_bias = adds(one);
    const Operand left = one.arguments[has_bias].operands[0], result = one.results[0].operands[0];
    std::vector<Operand> operands{left, packed};
    if (has_bias) operands.push_back(one.arguments[0].operands[0]);
    const int64_t offset = has_bias ? operands[2].geometry.offset : 0;
    auto kernel = std::make_shared<SharedMatmul>(left.geometry, result.geometry.sizes[1], offset);
    one = kernel_instruction(one, std::move(kernel), "matmul", operands, {result});
  }

  void insert(std::map<int, Instruction>& packing) {
    std::vector<Instruction> all;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const auto found = packing.find(static_cast<int>(i));
      if (found != packing.end()) all.push_back(std::move(found->second));
      all.push_back(std::move(program_.instructions[i]));
    }
    program_.instructions = std::move(all);
  }

  graph::Program& program_;
};

}  // namespace

graph::Pass shared_matmul_pass() {
  return {.name = "shared matmuls",
          .what = "packs matrices that several small matmuls read",
          .tolerance = 1e-5,
          .run = [](graph::Program& program, const graph::PassOptions&) { return MatmulSharer(program).run(); }};
}

}  // namespace bellows::compile_detail
