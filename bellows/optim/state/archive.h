#pragma once

#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include <memory>
#include <utility>
#include <vector>

#include "bellows/optim/state/fields_impl.h"

// Archives of the option and state classes of Bellows, from their fields (fields_impl.h).
namespace bellows::optim {

/// Undefined tensors are left out, because an archive cannot contain them.
template <class T>
void write_fields(torch::serialize::OutputArchive& archive, T object) {
  fields(object, [&](const char* name, auto& value) {
    const c10::IValue stored(value);
    if (!stored.isTensor() || stored.toTensor().defined()) archive.write(name, stored);
  });
}

/// Fields that the archive does not contain keep their values.
template <class T>
void read_fields(torch::serialize::InputArchive& archive, T& object) {
  fields(object, [&]<class Value>(const char* name, Value& value) {
    c10::IValue stored;
    if (archive.try_read(name, stored)) value = stored.to<Value>();
  });
}

/// An optimizer in the form of libtorch's own: `step_group` updates the parameters of a group with plain operators.
template <class Options, class State>
class LoopOptimizer : public torch::optim::Optimizer {
 public:
  using StepGroup = void (*)(torch::optim::Optimizer& optimizer, torch::optim::OptimizerParamGroup& group);
  LoopOptimizer(const Options& options, StepGroup step_group)
      : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{}, std::make_unique<Options>(options)),
        step_group_(step_group) {}
  at::Tensor step(LossClosure) override {
    for (torch::optim::OptimizerParamGroup& group : param_groups_) step_group_(*this, group);
    return {};
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<State, Options>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::serialize<State, Options>(archive, *this);
  }

 private:
  StepGroup step_group_;
};

}  // namespace bellows::optim
