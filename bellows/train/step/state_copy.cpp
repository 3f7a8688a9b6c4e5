#include "bellows/train/step/state_copy.h"

#include <c10/core/GradMode.h>
#include <c10/util/irange.h>

#include <utility>

namespace bellows::train {

namespace {

void copy_section(const NamedTensors& from, NamedTensors& to) {
  to.resize(from.size());
  for (const auto i : c10::irange(from.size())) {
    const auto& [name, tensor] = from[i];
    auto& [kept_name, kept] = to[i];
    const bool fits = kept.defined() && kept_name == name && kept.sizes() == tensor.sizes() &&
                      kept.strides() == tensor.strides() && kept.dtype() == tensor.dtype();
    kept_name = name;
    if (fits) {
      kept.copy_(tensor);
    } else {
      kept = tensor.detach().clone();
    }
  }
}

}  // namespace

void copy_state(const checkpoint::State& from, checkpoint::State& to) {
  const c10::NoGradGuard no_grad;
  checkpoint::State copy = from;
  for (const auto section : {&checkpoint::State::model, &checkpoint::State::optimizer, &checkpoint::State::extra}) {
    copy.*section = std::move(to.*section);
    copy_section(from.*section, copy.*section);
  }
  to = std::move(copy);
}

}  // namespace bellows::train
