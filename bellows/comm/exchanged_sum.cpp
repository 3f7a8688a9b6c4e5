#include "bellows/comm/exchanged_sum_impl.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>

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
      TORCH_CHECK_VALUE(false, "reduce_scatter: Gloo has no such reduction; there are sum, product, min and max.");
  }
}

class ExchangedSum final : public c10d::Work {
 public:
  ExchangedSum(c10::intrusive_ptr<c10d::Work> exchange, at::Tensor out, std::vector<at::Tensor> parts,
               c10d::ReduceOp::RedOpType op)
      : exchange_(std::move(exchange)), out_(std::move(out)), parts_(std::move(parts)), op_(op) {}

  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = exchange_->wait(timeout);
    if (!done || parts_.empty()) return done;
    const at::NoGradGuard no_grad;
    for (size_t i = 1; i < parts_.size(); ++i) combine(out_, i == 1 ? parts_[0] : out_, parts_[i], op_);
    parts_.clear();
    return true;
  }
  bool isCompleted() override { return exchange_->isCompleted(); }
  bool isSuccess() const override { return exchange_->isSuccess(); }
  std::exception_ptr exception() const override { return exchange_->exception(); }
  void abort() override { exchange_->abort(); }

 private:
  c10::intrusive_ptr<c10d::Work> exchange_;
  at::Tensor out_;
  std::vector<at::Tensor> parts_;  ///< of what was received, by rank, at least two; none once they are added up
  c10d::ReduceOp::RedOpType op_;
};

}  // namespace

c10::intrusive_ptr<c10d::Work> reduce_scatter_by_exchange(c10d::Backend& backend, at::Tensor& out, at::Tensor& in,
                                                          const c10d::ReduceScatterOptions& options) {
  at::Tensor received = at::empty_like(in);
  std::vector<int64_t> even;
  auto exchange = backend.alltoall_base(received, in, even, even, {.timeout = options.timeout});
  std::vector<at::Tensor> parts = received.view({backend.getSize(), -1}).unbind(0);
  for (at::Tensor& part : parts) part = part.view(out.sizes());
  return c10::make_intrusive<ExchangedSum>(std::move(exchange), out, std::move(parts), options.reduceOp.op_);
}

}  // namespace bellows::comm
