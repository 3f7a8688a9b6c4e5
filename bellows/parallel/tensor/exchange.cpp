#include "bellows/parallel/tensor/exchange.h"

#include <torch/csrc/autograd/custom_function.h>

#include "bellows/parallel/exchange_op.h"

namespace bellows::parallel {

namespace {

using ExchangeContext = torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class Exchange : int64_t { none, add, slice, gather, add_and_slice };

struct ExchangeGroup final : torch::CustomClassHolder {
  explicit ExchangeGroup(comm::Group saved) : group(std::move(saved)) {}
  comm::Group group;
};

at::Tensor slice_of_rank(const at::Tensor& x, int64_t dim, const comm::Group& group) {
  const int64_t size = x.size(dim);
  TORCH_CHECK_VALUE(size % group.size() == 0, "tensor parallelism: dim ", dim, " of a tensor with sizes [",
                    c10::Join(", ", x.sizes()), "] has ", size, " elements, which the ", group.size(),
                    " ranks of group ", group.name(), " do not divide. Pad the batch.");
  const int64_t length = size / group.size();
  return x.narrow(dim, group.rank() * length, length).contiguous();
}

/// Sends the ranks their slices, and adds the slices that arrive in the order of the ranks.
at::Tensor exchange_and_add(const at::Tensor& x, int64_t dim, const comm::Group& group) {
  slice_of_rank(x, dim, group);  // checks the sizes
  const int64_t length = x.size(dim) / group.size();
  const at::Tensor slices = x.unflatten(dim, {group.size(), length}).movedim(dim, 0).contiguous();
  return all_to_all_op(slices, group).sum(0);
}

at::Tensor run_exchange(Exchange kind, const at::Tensor& x, int64_t dim, const comm::Group& group) {
  switch (kind) {
    case Exchange::add:
      return all_reduce_op(x, group);
    case Exchange::slice:
      return slice_of_rank(x, dim, group);
    case Exchange::gather:
      return all_gather_op(x, group).movedim(0, dim).flatten(dim, dim + 1);
    case Exchange::add_and_slice:
      return exchange_and_add(x, dim, group);
    default:
      return x;
  }
}

struct ExchangeFunction : torch::autograd::Function<ExchangeFunction> {
  static at::Tensor forward(ExchangeContext* context, const at::Tensor& x, Exchange forward_kind,
                            Exchange backward_kind, int64_t dim, const comm::Group& group) {
    context->saved_data["kind"] = static_cast<int64_t>(backward_kind);
    context->saved_data["dim"] = dim;
    context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<ExchangeGroup>(group));
    return run_exchange(forward_kind, x, dim, group);
  }

  static variable_list backward(ExchangeContext* context, const variable_list& gradients) {
    TORCH_CHECK(!c10::GradMode::is_enabled(), "Tensor parallelism does not support second derivatives.");
    const auto group = context->saved_data["group"].toCapsule();
    const auto kind = static_cast<Exchange>(context->saved_data["kind"].toInt());
    variable_list result(5);
    result[0] = run_exchange(kind, gradients[0], context->saved_data["dim"].toInt(),
                             static_cast<const ExchangeGroup&>(*group).group);
    return result;
  }
};

at::Tensor exchange(const at::Tensor& x, Exchange forward_kind, Exchange backward_kind, int64_t dim,
                    const comm::Group& group) {
  if (group.size() == 1) return x;
  return ExchangeFunction::apply(x, forward_kind, backward_kind, dim < 0 ? dim + x.dim() : dim, group);
}

}  // namespace

at::Tensor add_gradients(const at::Tensor& x, const comm::Group& group) {
  return exchange(x, Exchange::none, Exchange::add, 0, group);
}

at::Tensor add_outputs(const at::Tensor& x, const comm::Group& group) {
  return exchange(x, Exchange::add, Exchange::none, 0, group);
}

at::Tensor take_slice(const at::Tensor& x, int64_t dim, const comm::Group& group) {
  return exchange(x, Exchange::slice, Exchange::gather, dim, group);
}

at::Tensor gather_slices(const at::Tensor& x, int64_t dim, bool add, const comm::Group& group) {
  return exchange(x, Exchange::gather, add ? Exchange::add_and_slice : Exchange::slice, dim, group);
}

at::Tensor add_and_slice(const at::Tensor& x, int64_t dim, const comm::Group& group) {
  return exchange(x, Exchange::add_and_slice, Exchange::gather, dim, group);
}

}  // namespace bellows::parallel
