#include "bellows/compile/embedding.h"

#include <algorithm>
#include <memory>

#include "bellows/graph/program/program_edit.h"
#include "bellows/kernels/parallel.h"

namespace bellows::compile_detail {
namespace {

using graph::Geometry;
using graph::Instruction;

/// Row i of the gradient is added to row ids[i] of the table.
struct EmbeddingShape {
  int64_t rows = 0, columns = 0, ids = 0;
  int64_t padding = -1;                        ///< a row without gradient; -1: none
  int64_t gradient_offset = 0, id_offset = 0;  ///< in elements
};

class EmbeddingGradient final : public graph::Kernel {
 public:
  explicit EmbeddingGradient(const EmbeddingShape& shape) : shape_(shape) {}

  std::string name() const override { return "embedding backward"; }
  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void*) const override {
    const auto* const gradient = static_cast<const float*>(operands[0]) + shape_.gradient_offset;
    const auto* const ids = static_cast<const int64_t*>(operands[1]) + shape_.id_offset;
    auto* const table = static_cast<float*>(results[0]);
    constexpr int64_t fewest_rows = 1000;  // per thread, because each thread reads all ids
    kernels::parallel_ranges(shape_.rows, fewest_rows, [&](int64_t begin, int64_t end) {
      std::fill(table + begin * shape_.columns, table + end * shape_.columns, 0.0F);
      for (int64_t i = 0; i < shape_.ids; ++i) {
        if (ids[i] < begin || ids[i] >= end || ids[i] == shape_.padding) continue;
        float* const row = table + ids[i] * shape_.columns;
        const float* const added = gradient + i * shape_.columns;
        for (int64_t c = 0; c < shape_.columns; ++c) row[c] += added[c];
      }
    });
  }

 private:
  const EmbeddingShape shape_;
};

bool is_dense(const Geometry& geometry, caffe2::TypeMeta dtype) {
  return geometry.device.is_cpu() && geometry.dtype == dtype && geometry.is_contiguous();
}

std::shared_ptr<const graph::Kernel> kernel_for(const Instruction& one) {
  if (!graph::detail::calls(one, "aten::embedding_dense_backward") || !graph::detail::is_pure(one)) return nullptr;
  for (size_t i = 2; i < one.arguments.size(); ++i) {
    if (one.arguments[i].number >= 0) return nullptr;
  }
  const Geometry &gradient = one.arguments[0].operands[0].geometry, &ids = one.arguments[1].operands[0].geometry,
                 &table = one.results[0].operands[0].geometry;
  const bool by_frequency = one.arguments[4].constant.toBool();
  if (by_frequency || table.sizes.size() != 2 || table.offset != 0 ||
      !is_dense(table, caffe2::TypeMeta::Make<float>()) || !is_dense(gradient, table.dtype) ||
      !is_dense(ids, caffe2::TypeMeta::Make<int64_t>()))
    return nullptr;
  return std::make_shared<EmbeddingGradient>(EmbeddingShape{.rows = table.sizes[0],
                                                            .columns = table.sizes[1],
                                                            .ids = c10::multiply_integers(ids.sizes),
                                                            .padding = one.arguments[3].constant.toInt(),
                                                            .gradient_offset = gradient.offset,
                                                            .id_offset = ids.offset});
}

int64_t use_kernels(graph::Program& program) {
  int64_t fired = 0;
  for (Instruction& one : program.instructions) {
    auto kernel = kernel_for(one);
    if (!kernel) continue;
    one.op = nullptr;
    one.kernel = std::move(kernel);
    one.kind = "embedding";
    one.arguments.resize(2);
    ++fired;
  }
  return fired;
}

}  // namespace

graph::Pass embedding_pass() {
  return {.name = "embeddings",
          .what = "computes gradients of embeddings in the program's memory",
          .run = [](graph::Program& program, const graph::PassOptions&) { return use_kernels(program); }};
}

}  // namespace bellows::compile_detail
