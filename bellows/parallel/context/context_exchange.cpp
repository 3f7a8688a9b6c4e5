#include "bellows/parallel/context/context_exchange.h"

#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "bellows/comm/collectives.h"

namespace bellows::parallel {

namespace {

using TokenContext = torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SavedTokenGroup final : torch::CustomClassHolder {
  SavedTokenGroup(comm::Group saved, const SequenceLayout& saved_layout)
      : group(std::move(saved)), layout(saved_layout) {}
  comm::Group group;
  SequenceLayout layout;
};

void save_group(TokenContext* context, const comm::Group& group, const SequenceLayout& layout) {
  context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<SavedTokenGroup>(group, layout));
}

void check_first_derivative() {
  TORCH_CHECK(!c10::GradMode::is_enabled(), "Context parallelism does not support second derivatives.");
}

struct GatherTokens : torch::autograd::Function<GatherTokens> {
  static at::Tensor forward(TokenContext* context, const at::Tensor& x, int64_t dim, const SequenceLayout& layout,
                            const comm::Group& group) {
    save_group(context, group, layout);
    context->saved_data["dim"] = dim;
    const at::Tensor parts = comm::all_gather(x.contiguous(), group);
    return in_token_order(parts.movedim(0, dim).flatten(dim, dim + 1), dim, layout);
  }

  static variable_list backward(TokenContext* context, const variable_list& gradients) {
    check_first_derivative();
    const auto capsule = context->saved_data["group"].toCapsule();
    const auto& saved = static_cast<const SavedTokenGroup&>(*capsule);
    const int64_t dim = context->saved_data["dim"].toInt();
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < saved.layout.ranks; ++rank)
      parts.push_back(part_of_rank(gradients[0], dim, rank, saved.layout).unsqueeze(0));
    return {comm::reduce_scatter(at::cat(parts, 0).contiguous(), saved.group).squeeze(0), {}, {}, {}};
  }
};

struct ExchangeParts : torch::autograd::Function<ExchangeParts> {
  static at::Tensor forward(TokenContext* context, const at::Tensor& parts, const comm::Group& group) {
    save_group(context, group, {});
    return comm::all_to_all(parts.contiguous(), group);
  }

  static variable_list backward(TokenContext* context, const variable_list& gradients) {
    check_first_derivative();
    const auto capsule = context->saved_data["group"].toCapsule();
    return {comm::all_to_all(gradients[0].contiguous(), static_cast<const SavedTokenGroup&>(*capsule).group), {}};
  }
};

}  // namespace

at::Tensor gather_tokens(const at::Tensor& x, int64_t dim, const SequenceLayout& layout, const comm::Group& group) {
  if (group.size() == 1) return x;
  return GatherTokens::apply(x, dim < 0 ? dim + x.dim() : dim, layout, group);
}

at::Tensor exchange_parts(const at::Tensor& parts, const comm::Group& group) {
  return ExchangeParts::apply(parts, group);
}

}  // namespace bellows::parallel
