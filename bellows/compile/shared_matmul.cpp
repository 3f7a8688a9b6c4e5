#include "bellows/compile/shared_matmul.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "bellows/compile/packed_matmul_kernels.h"
#include "bellows/graph/passes/expression_maker.h"
#include "bellows/graph/program/program_edit.h"

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

size_t offset_bytes(const Geometry& geometry) {
  return static_cast<size_t>(geometry.offset) * geometry.dtype.itemsize();
}

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
    const MatrixPacking packing{.name = "pack matrix",
                                .matrix = {.dtype = type,
                                           .inner = right.geometry.sizes[0],
                                           .columns = right.geometry.sizes[1],
                                           .row = right.geometry.strides[0],
                                           .column = right.geometry.strides[1]},
                                .offset = offset_bytes(right.geometry)};
    Instruction made = kernel_instruction(first, make_kernel(packing), "matmul", {right}, {result});
    made.late = false;
    return made;
  }

  static void replace(Instruction& one, const Operand& packed) {
    const bool has_bias = adds(one);
    const Operand left = one.arguments[has_bias].operands[0], result = one.results[0].operands[0];
    std::vector<Operand> operands{left, packed};
    if (has_bias) operands.push_back(one.arguments[0].operands[0]);
    const MatmulWithPacked matmul{.name = "matmul with shared matrix",
                                  .matmul = {.dtype = left.geometry.dtype.toScalarType(),
                                             .rows = left.geometry.sizes[0],
                                             .inner = left.geometry.sizes[1],
                                             .columns = result.geometry.sizes[1],
                                             .left_row = left.geometry.strides[0],
                                             .left_column = left.geometry.strides[1]},
                                  .has_bias = has_bias,
                                  .left_offset = offset_bytes(left.geometry),
                                  .bias_offset = has_bias ? offset_bytes(operands[2].geometry) : 0,
                                  .may_run_beside = true};
    one = kernel_instruction(one, make_kernel(matmul), "matmul", operands, {result});
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
