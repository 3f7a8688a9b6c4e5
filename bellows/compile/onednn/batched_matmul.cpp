#include "bellows/compile/onednn/layouts_impl.h"

namespace bellows::compile_detail::onednn {
namespace {

size_t bytes_before_first(const Geometry& geometry) {
  return static_cast<size_t>(geometry.offset) * geometry.dtype.itemsize();
}

/// True if oneDNN can read the matrices: elements of a row or of a column are adjacent, and no two elements overlap.
bool is_readable(const Geometry& geometry) {
  const auto &sizes = geometry.sizes, &strides = geometry.strides;
  if (sizes.size() != 3 || c10::multiply_integers(sizes) == 0) return false;
  const size_t inner = strides[2] == 1 || (strides[1] != 1 && sizes[2] == 1) ? 2 : 1, outer = 3 - inner;
  return (strides[inner] == 1 || sizes[inner] == 1) && (strides[outer] >= sizes[inner] || sizes[outer] == 1) &&
         (strides[0] > 0 || sizes[0] == 1);
}

}  // namespace

bool prefers_primitive(const BatchedMatmul& shape) {
  return shape.left.get_strides()[2] == 1 || !__builtin_cpu_is("intel");
}

KernelPointer batched_matmul(const BatchedMatmul& shape) {
  constexpr auto from = PrimitiveKernel::Place::operand, to = PrimitiveKernel::Place::result;
  const dnnl::matmul::primitive_desc desc(engine(), shape.left, shape.right, shape.result, attributes(),
                                          /*allow_empty=*/true);
  if (!is_fast(desc)) return nullptr;
  std::vector<PrimitiveKernel::Slot> slots{{DNNL_ARG_SRC, shape.left, from, 0, shape.left_offset},
                                           {DNNL_ARG_WEIGHTS, shape.right, from, 1, shape.right_offset},
                                           {DNNL_ARG_DST, shape.result, to, 0}};
  return std::make_shared<PrimitiveKernel>(std::string("batched matmul ") + desc.impl_info_str(), dnnl::matmul(desc),
                                           std::move(slots), desc.scratchpad_desc());
}

bool Layouts::batched_product(int at) {
  const Instruction& one = program_.instructions[at];
  if (!one.updates.empty() || !one.op->writes.empty()) return false;
  const Operand left = operand(one, 0), right = operand(one, 1), result = one.results[0].operands[0];
  if (!is_readable(left.geometry) || !is_readable(right.geometry) || !is_readable(result.geometry) ||
      !left.geometry.device.is_cpu() || result.geometry.offset != 0 || !whole(result) ||
      !is_floating(data_type(left.geometry)))
    return false;
  for (const Operand* other : {&right, &result}) {
    if (other->geometry.dtype != left.geometry.dtype) return false;
  }
  const BatchedMatmul shape{desc_of(left.geometry), desc_of(right.geometry), desc_of(result.geometry),
                            bytes_before_first(left.geometry), bytes_before_first(right.geometry)};
  const KernelPointer kernel = prefers_primitive(shape) ? batched_matmul(shape) : nullptr;
  if (!kernel) return false;
  for (const Operand* each : {&left, &right}) need_plain(each->value);
  there_[result.value] = true;
  emit("matmul", kernel, {left, right}, {result});
  ++report_.matmuls;
  return true;
}

}  // namespace bellows::compile_detail::onednn
