#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "bellows/comm/collectives.h"
#include "bellows/core/seed.h"
#include "bellows/parallel/ddp/same_weights.h"
#include "bellows/tap/deferral.h"
#include "bellows/tap/gradient_tap.h"

namespace bellows::parallel {

struct SameWeights::State {
  NamedTensors parameters;
  comm::Group group;
  std::vector<uint32_t> versions;  ///< parameter versions at the last comparison
  /// Bits of one element per parameter, because torch::optim writes without increasing the version
  std::vector<uint64_t> samples;
  int64_t pass = 0;              ///< number of the backward pass that is watched
  int64_t begun = 0, ended = 0;  ///< last passes that began and ended
  std::optional<comm::Pending> pending = {};
  std::string failure = {};  ///< error that all later steps throw

  uint64_t changes() const;
  void note();
  void begin();
  void end();
  void compare_values();
};

namespace {

bool rows_agree(const at::Tensor& rows) {
  return rows.eq(rows.select(0, 0)).all().item<bool>();
}

/// The first bytes of a tensor. Returns 0 on an accelerator, to avoid synchronization.
uint64_t sample_of(const at::Tensor& tensor) {
  uint64_t bits = 0;
  if (tensor.is_cpu() && tensor.numel() > 0)
    std::memcpy(&bits, tensor.const_data_ptr(), std::min(sizeof bits, tensor.itemsize()));
  return bits;
}

/// The sum of the tensor's bytes.
int64_t digest_of(const at::Tensor& tensor) {
  return at::sum(tensor.detach().reshape({-1}).contiguous().view(at::kByte), at::kLong).item<int64_t>();
}

}  // namespace

at::Tensor weight_digests(const NamedTensors& parameters, const comm::Group& group) {
  at::Tensor digests = at::empty({static_cast<int64_t>(parameters.size())}, at::kLong);
  for (size_t i = 0; i < parameters.size(); ++i)
    digests.mutable_data_ptr<int64_t>()[i] = digest_of(parameters[i].second);
  return comm::all_gather(digests, group);
}

std::optional<std::pair<int64_t, size_t>> first_difference(const at::Tensor& digests) {
  for (int64_t rank = 1; rank < digests.size(0); ++rank) {
    for (int64_t i = 0; i < digests.size(1); ++i) {
      if (digests[rank][i].item<int64_t>() != digests[0][i].item<int64_t>())
        return std::pair(rank, static_cast<size_t>(i));
    }
  }
  return std::nullopt;
}

/// Hashes which parameters were written since the last comparison, how often, and whether a sampled element changed.
uint64_t SameWeights::State::changes() const {
  uint64_t result = 0;
  bool changed = false;
  for (size_t i = 0; i < versions.size(); ++i) {
    const at::Tensor& parameter = parameters[i].second;
    result = mix_seed(result, static_cast<uint32_t>(parameter._version()) - versions[i]);
    changed |= sample_of(parameter) != samples[i];
  }
  return mix_seed(result, changed ? 1 : 0);
}

void SameWeights::State::note() {
  for (size_t i = 0; i < versions.size(); ++i) {
    versions[i] = static_cast<uint32_t>(parameters[i].second._version());
    samples[i] = sample_of(parameters[i].second);
  }
}

void SameWeights::State::begin() {
  const at::NoGradGuard no_grad;
  pending = comm::all_gather_async(at::scalar_tensor(static_cast<int64_t>(changes()), at::kLong).view({1}), group);
  note();  // last, because a rank that runs out of memory above has not compared
}

void SameWeights::State::end() {
  const at::NoGradGuard no_grad;
  if (!rows_agree(std::exchange(pending, std::nullopt)->wait())) compare_values();
  ended = pass;
}

/// Compares values, because rank 0 alone may write weights and restore them, for example to evaluate averaged weights.
void SameWeights::State::compare_values() {
  const auto found = first_difference(weight_digests(parameters, group));
  if (!found) return;
  failure = c10::str("DistributedDataParallel: the ranks hold different weights: parameter \"",
                     parameters[found->second].first, "\" on rank ", found->first, " differs from rank 0 (group ",
                     group.name(), "). An optimizer step failed or was skipped on some ranks. ",
                     "End all ranks and resume from the last checkpoint.");
  TORCH_CHECK(false, failure);
}

SameWeights::SameWeights(NamedTensors parameters, const comm::Group& group)
    : state_(std::make_shared<State>(
          State{.parameters = std::move(parameters), .group = group, .versions = {}, .samples = {}})) {
  state_->versions.resize(state_->parameters.size());
  state_->samples.resize(state_->parameters.size());
  state_->note();
}

void SameWeights::watch(const std::vector<at::Tensor>& outputs, std::function<void()> began) {
  const int64_t pass = ++state_->pass;
  const auto begin = [weak = std::weak_ptr<State>(state_), began, pass](const at::Tensor&) {
    const auto state = weak.lock();
    if (!state || state->pass != pass || std::exchange(state->begun, pass) == pass) return;
    began();
    if (tap::active_deferral()) {  // parameters are readable when the pending operators have run
      return tap::at_end_of_backward([state] {
        const tap::EagerGuard eager;
        state->begin();
        state->end();
      });
    }
    state->begin();
    torch::autograd::Engine::get_default_engine().queue_callback([state] { state->end(); });
  };
  bool watched = false;
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    output.register_hook(begin);
    watched = true;
  }
  if (!watched) began();
}

void SameWeights::check() const {
  TORCH_CHECK(state_->failure.empty(), state_->failure);
  TORCH_CHECK(state_->begun == state_->ended,
              "DistributedDataParallel: an exception ended the last backward pass while the ranks exchanged gradients "
              "(group ",
              state_->group.name(), "). End all ranks and resume from the last checkpoint.");
}

}  // namespace bellows::parallel
