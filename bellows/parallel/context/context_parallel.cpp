#include "bellows/parallel/context/context_parallel.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <utility>

#include "bellows/comm/collectives.h"
#include "bellows/parallel/average_gradients.h"
#include "bellows/parallel/context/context_call.h"
#include "bellows/parallel/context/context_exchange.h"
#include "bellows/parallel/context/context_tap.h"
#include "bellows/parallel/ddp/same_model.h"

namespace bellows::parallel {

struct ContextParallel::State {
  State(comm::Group the_group, const ContextAttentionOptions& options, const std::optional<TensorParallel>& tensor)
      : group(std::move(the_group)), tap(std::make_shared<ContextTap>(group, options, tensor)) {}

  comm::Group group;
  std::shared_ptr<ContextTap> tap;
};

namespace {

using State = ContextParallel::State;

std::vector<std::string> lines_of(const ContextOptions& options) {
  return {c10::str("method ", to_string(options.method)), c10::str("zigzag ", options.zigzag ? "true" : "false"),
          c10::str("check_finite ", options.check_finite ? "true" : "false"),
          c10::str("generator ", options.generator ? "set" : "not set"),
          c10::str("tensor rank ", options.tensor ? options.tensor->group().rank() : 0)};
}

std::shared_ptr<State> existing(const std::weak_ptr<State>& state) {
  std::shared_ptr<State> result = state.lock();
  TORCH_CHECK(result,
              "context parallelism: the ContextParallel object no longer exists. Keep it while you use the model.");
  return result;
}

/// Calls a block for this rank's part of the sequence.
at::Tensor run_inside(const std::shared_ptr<State>& state, const RunContextBlock& run, const ContextBlock& block,
                      const at::Tensor& x) {
  const ContextBlock inside = [state, block](const at::Tensor& part) {
    const ContextParallel::Scope scope(state);
    const ContextTap::Inside guard(*state->tap, part.size(1) * state->tap->sequence_parts());
    return block(part);
  };
  state->tap->set_output_divided(false);
  return run ? run(inside, x) : inside(x);
}

/// The blocks of a model in their order.
class BlockSequence {
 public:
  BlockSequence(std::weak_ptr<State> state, std::vector<int64_t> stacks, ContextBlocks options)
      : state_(std::move(state)), stacks_(std::move(stacks)), options_(std::move(options)) {}

  at::Tensor operator()(const ContextBlock& block, const at::Tensor& input) {
    const std::shared_ptr<State> state = existing(state_);
    if (state->group.size() == 1) return options_.run ? options_.run(block, input) : block(input);
    const size_t stack = stack_;
    const int64_t number = next_;
    reset();  // an exception ends the pass
    const at::Tensor x = number == 0 ? part_of_rank(input, 1, state->group.rank(), state->tap->layout()) : input;
    const at::Tensor y = run_inside(state, options_.run, block, x);
    if (number + 1 < stacks_[stack]) {
      stack_ = stack;
      next_ = number + 1;
      return y;
    }
    if (stack + 1 < stacks_.size()) {
      stack_ = stack + 1;
      return y;
    }
    state->tap->set_output_divided(!options_.gather);
    return options_.gather ? gather_tokens(y, 1, state->tap->layout(), state->group) : y;
  }

 private:
  void reset() {
    stack_ = 0;
    next_ = 0;
  }

  std::weak_ptr<State> state_;
  std::vector<int64_t> stacks_;
  ContextBlocks options_;
  size_t stack_ = 0;
  int64_t next_ = 0;  ///< number of the next block of the stack
};

}  // namespace

ContextParallel::ContextParallel(const comm::Group& group, const ContextOptions& options) {
  check_same_options("context parallelism", lines_of(options), group);
  state_ = std::make_shared<State>(group,
                                   ContextAttentionOptions{.method = options.method,
                                                           .zigzag = options.zigzag,
                                                           .generator = options.generator,
                                                           .check_finite = options.check_finite},
                                   options.tensor);
}

ContextParallel::ContextParallel(const comm::Mesh& mesh, const std::string& axis, const ContextOptions& options)
    : ContextParallel(mesh.group(axis), options) {}

ContextParallel::Scope::Scope(std::shared_ptr<State> state) : state_(std::move(state)) {
  // Install the tap even if a scope exists, because that scope may belong to another thread. If the tap is installed
  // twice, only the first one computes.
  tap_ = std::make_shared<tap::ArgumentTapGuard>(state_->tap);
  if (state_->group.size() > 1) check_ = std::make_shared<tap::OpCheckGuard>(state_->tap);
  masks_ = std::make_shared<ContextTap::Inside>(*state_->tap);
}

const comm::Group& ContextParallel::group() const {
  return state_->group;
}

at::Tensor ContextParallel::slice(const at::Tensor& x, int64_t dim) const {
  return part_of_rank(x, dim, state_->group.rank(), state_->tap->layout());
}

at::Tensor ContextParallel::gather(const at::Tensor& x, int64_t dim) const {
  return gather_tokens(x, dim, state_->tap->layout(), state_->group);
}

at::Tensor ContextParallel::positions(int64_t tokens) const {
  return token_positions(tokens, state_->group.rank(), state_->tap->layout());
}

RunContextBlock ContextParallel::blocks(const std::vector<int64_t>& stacks, const ContextBlocks& options) const {
  TORCH_CHECK_VALUE(!stacks.empty() && *std::min_element(stacks.begin(), stacks.end()) > 0,
                    "context parallelism: expected stacks of at least one block, got [", c10::Join(", ", stacks),
                    "]. Does the model define blocks (models/blocks.h)?");
  state_->tap->divide_blocks_only();
  return BlockSequence(state_, stacks, options);
}

ModelParts ContextParallel::stage_parts(const ModelParts& parts) const {
  TORCH_CHECK_VALUE(parts.parts.size() >= 3, "context parallelism: expected embeddings, blocks and a head, got ",
                    parts.parts.size(), " parts.");
  ModelParts result = parts;
  const std::weak_ptr<State> weak = state_;
  ModelPart &first = result.parts.front(), &last = result.parts.back();
  first.run = [weak, run = first.run](const at::Tensor& x, const std::vector<at::Tensor>& inputs) {
    const std::shared_ptr<State> state = existing(weak);
    return part_of_rank(run(x, inputs), 1, state->group.rank(), state->tap->layout());
  };
  last.run = [weak, run = last.run](const at::Tensor& x, const std::vector<at::Tensor>& inputs) {
    const std::shared_ptr<State> state = existing(weak);
    return run(gather_tokens(x, 1, state->tap->layout(), state->group), inputs);
  };
  return result;
}

RunContextBlock ContextParallel::stage_blocks(const RunContextBlock& run) const {
  state_->tap->divide_blocks_only();
  return [weak = std::weak_ptr<State>(state_), run](const ContextBlock& block, const at::Tensor& x) {
    return run_inside(existing(weak), run, block, x);
  };
}

at::Tensor ContextParallel::loss(const at::Tensor& sum, const at::Tensor& count) const {
  const at::Tensor all = comm::all_reduce(count.detach().to(at::kDouble).clone(), state_->group);
  return sum * all.reciprocal().mul_(state_->group.size()).to(sum.scalar_type());
}

void ContextParallel::average_gradients(const std::vector<at::Tensor>& parameters) const {
  parallel::average_gradients(parameters, state_->group);
}

std::string ContextParallel::describe() const {
  const ContextAttentionOptions& options = state_->tap->options();
  return c10::str(state_->group.size(), " ranks, ", to_string(options.method), options.zigzag ? ", zig-zag" : "");
}

}  // namespace bellows::parallel
