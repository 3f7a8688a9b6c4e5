#include "bellows/tap/sequential_tap.h"

#include <c10/util/Exception.h>
#include <torch/nn/modules/container/sequential.h>

#include <tuple>
#include <utility>

namespace bellows::tap {

namespace {

using torch::nn::AnyModule;
using torch::nn::AnyModulePlaceholder;
using torch::nn::AnyValue;
using Content = std::unique_ptr<AnyModulePlaceholder>;

/// Gives access to AnyModule's content: explicit instantiation may name private members.
struct ContentOf {
  using Member = Content AnyModule::*;
  friend Member content_member(ContentOf);
};
template <class Tag, typename Tag::Member member>
struct Access {
  friend typename Tag::Member content_member(Tag) { return member; }
};
template struct Access<ContentOf, &AnyModule::content_>;

Content& content_of(AnyModule& module) {
  return module.*content_member(ContentOf{});
}

using Pair = std::tuple<at::Tensor, at::Tensor>;
using Nested = std::tuple<at::Tensor, Pair>;

std::vector<at::Tensor> tensors_of(AnyValue& value) {
  if (const auto* tensor = value.try_get<at::Tensor>()) return {*tensor};
  if (const auto* pair = value.try_get<Pair>()) return {std::get<0>(*pair), std::get<1>(*pair)};
  if (const auto* nested = value.try_get<Nested>()) {
    const auto& [output, state] = *nested;
    return {output, std::get<0>(state), std::get<1>(state)};
  }
  return {};
}

/// Calls the child and reports its result. The class that it states is its own, so that AnyModule::get() refuses it
/// instead of taking it for the child's holder.
struct Reporting : AnyModulePlaceholder {
  Reporting(Content child, SequentialTap::Receive to)
      : AnyModulePlaceholder(typeid(Reporting)), inner(std::move(child)), receive(std::move(to)) {}

  AnyValue forward(std::vector<AnyValue>&& arguments) override {
    AnyValue result = inner->forward(std::move(arguments));
    receive(tensors_of(result));
    return result;
  }
  std::shared_ptr<torch::nn::Module> ptr() override { return inner->ptr(); }
  // A copy of the model is another model, which nobody watches.
  Content copy() const override { return inner->copy(); }
  Content clone_module(std::optional<torch::Device> device) const override { return inner->clone_module(device); }

  Content inner;
  SequentialTap::Receive receive;
};

AnyModule& child_of(torch::nn::Module& module, size_t child) {
  auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
  TORCH_CHECK_VALUE(sequential, "SequentialTap: expected a torch::nn::Sequential, got a ", module.name(), ".");
  TORCH_CHECK_VALUE(child < sequential->size(), "SequentialTap: expected a child below ", sequential->size(), ", got ",
                    child, ".");
  return *(sequential->begin() + static_cast<std::ptrdiff_t>(child));
}

}  // namespace

SequentialTap::SequentialTap(std::shared_ptr<torch::nn::Module> sequential, size_t child, Receive receive)
    : sequential_(std::move(sequential)), child_(child) {
  TORCH_CHECK_VALUE(sequential_, "SequentialTap: expected a torch::nn::Sequential, got null.");
  Content& content = content_of(child_of(*sequential_, child_));
  content = std::make_unique<Reporting>(std::move(content), std::move(receive));
  reporting_ = content.get();
}

// Taps of one child may end in any order.
SequentialTap::~SequentialTap() {
  Content* content = &content_of(child_of(*sequential_, child_));
  while (auto* reporting = dynamic_cast<Reporting*>(content->get())) {
    if (reporting == reporting_) {
      Content inner = std::move(reporting->inner);
      *content = std::move(inner);
      return;
    }
    content = &reporting->inner;
  }
}

int64_t children_of_sequential(const torch::nn::Module& module) {
  const auto* sequential = dynamic_cast<const torch::nn::SequentialImpl*>(&module);
  return sequential ? static_cast<int64_t>(sequential->size()) : -1;
}

}  // namespace bellows::tap
