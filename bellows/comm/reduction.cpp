#include <ATen/ops/add.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>

#include "bellows/comm/reduction_impl.h"

namespace bellows::comm {

namespace {

void combine(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      at::add_out(out, a, b);
      break;
    case c10d::ReduceOp::PRODUCT:
      at::mul_out(out, a, b);
      break;
    case c10d::ReduceOp::MIN:
      at::minimum_out(out, a, b);
      break;
    case c10d::ReduceOp::MAX:
      at::maximum_out(out, a, b);
      break;
    default:
      TORCH_CHECK_VALUE(false, "collectives: this reduction is not supported. Use sum, product, min or max.");
  }
}

}  // namespace

void reduce_in_pairs(at::Tensor out, std::vector<at::Tensor> parts, c10d::ReduceOp::RedOpType op) {
  for (size_t stride = 1; stride < parts.size(); stride *= 2) {
    const bool last = 2 * stride >= parts.size();
    for (size_t i = 0; i + stride < parts.size(); i += 2 * stride)
      combine(last ? out : parts[i], parts[i], parts[i + stride], op);
  }
}

}  // namespace bellows::comm
