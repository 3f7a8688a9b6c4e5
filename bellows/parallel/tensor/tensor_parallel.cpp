#include "bellows/parallel/tensor/tensor_parallel.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <set>
#include <utility>

#include "bellows/comm/collectives.h"
#include "bellows/core/sharded_gradients.h"
#include "bellows/parallel/ddp/reducer.h"
#include "bellows/parallel/ddp/same_model.h"
#include "bellows/parallel/exchange_op.h"
#include "bellows/parallel/tensor/exchange.h"
#include "bellows/parallel/tensor/layer_tap.h"
#include "bellows/parallel/tensor/tensor_state.h"
#include "bellows/tap/deferral.h"

namespace bellows::parallel {

struct TensorParallel::State final : ShardedGradients {
  State(Model the_model, comm::Group the_group, std::vector<TensorCut> the_cuts,
        const std::optional<at::Generator>& generator)
      : inner(std::move(the_model)),
        model(inner),
        group(std::move(the_group)),
        cuts(std::move(the_cuts)),
        tap(std::make_shared<LayerTap>(group, cuts, generator)),
        gradients(*this, gradient_parts()) {}
  virtual ~State() = default;

  at::Tensor over_ranks(at::Tensor number, Over op) const override {
    return all_reduce_op(number, group, op == Over::max ? comm::Reduce::max : comm::Reduce::sum);
  }

  /// Calls `body`, which runs a forward pass of the inner model. Params: inputs – the same on all ranks
  void run(const std::vector<at::Tensor>& inputs, const std::function<void()>& body);
  void compare_batches(const std::vector<at::Tensor>& inputs) const;
  void run_part(const std::function<void()>& body);
  void check_layers();

  Model inner;  ///< the model without exchanges
  Model model;  ///< the model that callers use; it refers to this object weakly
  comm::Group group;
  std::vector<TensorCut> cuts;
  std::shared_ptr<LayerTap> tap;
  int scopes = 0;
  bool first_forward = true;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> gradient_parts() const {
    std::vector<std::pair<at::Tensor, at::Tensor>> parts;
    if (group.size() == 1) return parts;
    for (const TensorCut& cut : cuts) parts.emplace_back(cut.parameter, cut.parameter);
    return parts;
  }

  ShardedGradientsEntry gradients;
};

namespace {

using State = TensorParallel::State;

std::string batch_line(const at::Tensor& input) {
  if (!input.defined()) return "none";
  std::string line = c10::str(input.scalar_type(), " [", c10::Join(", ", input.sizes()), "]");
  if (!input.is_cpu() || input.layout() != at::kStrided) return line;
  const at::Tensor dense = input.detach().contiguous();
  const std::string_view bytes(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  return line + " with checksum " + std::to_string(std::hash<std::string_view>()(bytes));
}

void check_batches(const std::vector<at::Tensor>& inputs, const comm::Group& group) {
  std::vector<std::string> lines;
  lines.reserve(inputs.size());
  for (const at::Tensor& input : inputs) lines.push_back(batch_line(input));
  check_same_lines("the ranks read different batches", "input", lines, group,
                   "All ranks of a tensor axis must read the same batch.");
}

/// The model with its exchanges.
class DividedModel final : public ModelWrapper {
  template <class Forward>
  auto run(const std::vector<at::Tensor>& inputs, const Forward& forward) {
    const std::shared_ptr<State> state = state_.lock();
    TORCH_CHECK(state, "tensor parallelism: the TensorParallel object of model \"", inner().name(),
                "\" no longer exists. Keep it while you use the model.");
    const TensorParallel::Scope scope(state);
    decltype(forward()) outputs;
    state->run(inputs, [&] { outputs = forward(); });
    return outputs;
  }

  std::weak_ptr<State> state_;

 public:
  DividedModel(const Model& inner, std::weak_ptr<State> state) : ModelWrapper(inner), state_(std::move(state)) {}

  at::Tensor forward(const at::Tensor& input) override {
    return run({input}, [&] { return inner().forward(input); });
  }
  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs) override {
    return run(inputs, [&] { return inner().forward_all(inputs); });
  }
};

/// All ranks throw if they disagree.
void check_same_start(const Model& model, const comm::Group& group, const TensorPlan& plan) {
  std::vector<std::string> lines;
  for (const auto& [pattern, style] : plan) lines.push_back("\"" + pattern + "\": " + to_string(style));
  check_same_options("tensor parallelism", std::move(lines), group);
  check_same_model(model, group);
}

/// Replaces the data of a parameter by this rank's slice.
void divide(const TensorCut& cut, const comm::Group& group) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (const auto& [begin, length] : cut.ranges(group.rank(), group.size()))
    parts.push_back(cut.parameter.detach().narrow(cut.dim, begin, length));
  at::Tensor parameter = cut.parameter;
  const at::Tensor slice = at::cat(parts, cut.dim).contiguous();
  parameter.mutable_grad().reset();
  parameter.set_data(slice);
}

double mebibytes(int64_t bytes) {
  const int64_t tenths = bytes * 10 / (1 << 20);
  return static_cast<double>(tenths) / 10;
}

}  // namespace

void TensorParallel::State::run(const std::vector<at::Tensor>& inputs, const std::function<void()>& body) {
  compare_batches(inputs);
  run_part(body);
  check_layers();
}

void TensorParallel::State::compare_batches(const std::vector<at::Tensor>& inputs) const {
  if (group.size() == 1 || !first_forward) return;
  const tap::EagerGuard eager;  // the comparison reads the data
  check_batches(inputs, group);
}

void TensorParallel::State::run_part(const std::function<void()>& body) {
  if (group.size() == 1) return body();
  tap->reset();
  {
    const tap::OpCheckGuard check(tap);
    body();
  }
  const bool sequence = tap->sequence();
  tap->reset();
  TORCH_CHECK(!sequence, "tensor parallelism: sequence parallelism has not reached the last block at the end of the ",
              "forward pass or pipeline stage. Pass the number of blocks to sequence_blocks(). Sequence parallelism ",
              "is not supported in a pipeline.");
}

void TensorParallel::State::check_layers() {
  if (group.size() > 1 && first_forward) tap->check_all_used();
  first_forward = false;
}

TensorParallel::Scope::Scope(std::shared_ptr<State> state) : state_(std::move(state)) {
  if (state_->scopes++ == 0) guard_ = std::make_shared<tap::ArgumentTapGuard>(state_->tap);
}

TensorParallel::Scope::~Scope() {
  --state_->scopes;
}

const Model& TensorParallel::model() const {
  return state_->model;
}

const comm::Group& TensorParallel::group() const {
  return state_->group;
}

at::Tensor TensorParallel::forward(const at::Tensor& input) const {
  return state_->model.forward(input);
}

void TensorParallel::run(const std::vector<at::Tensor>& inputs, const std::function<void()>& body) const {
  const Scope scope(state_);
  state_->run(inputs, body);
}

void TensorParallel::compare_batches(const std::vector<at::Tensor>& inputs) const {
  state_->compare_batches(inputs);
}

void TensorParallel::run_part(const std::function<void()>& body) const {
  state_->run_part(body);
}

void TensorParallel::check_layers() const {
  state_->check_layers();
}

bool TensorParallel::set_masks_left(bool on) const {
  return state_->tap->set_masks_left(on);
}

bool TensorParallel::divides_sequences() const {
  return state_->tap->sequence();
}

RandomSlice TensorParallel::random_slice(const at::Tensor& x) const {
  return state_->tap->random_slice(x);
}

bool TensorParallel::has_divided_logits() const {
  return state_->tap->has_divided_logits();
}

std::function<at::Tensor(const std::function<at::Tensor(const at::Tensor&)>&, const at::Tensor&)>
TensorParallel::sequence_blocks(int64_t blocks) const {
  for (const auto& [name, parameter] : state_->inner.named_parameters()) {
    TORCH_CHECK_VALUE(name.find("multihead_attn.") == std::string::npos, "sequence_blocks: the cross-attention of \"",
                      name, "\" does not support sequence parallelism. Use tensor parallelism alone.");
  }
  return [weak = std::weak_ptr<State>(state_), blocks, next = int64_t{0}](
             const std::function<at::Tensor(const at::Tensor&)>& block, const at::Tensor& input) mutable {
    const std::shared_ptr<State> state = weak.lock();
    TORCH_CHECK(state, "sequence_blocks: the TensorParallel object no longer exists. Keep it while you use the model.");
    if (state->group.size() == 1) return block(input);
    const bool first = !state->tap->sequence();  // reset() ends an incomplete pass
    if (first) next = 0;
    const at::Tensor x = first ? take_slice(input, 1, state->group) : input;
    state->tap->set_sequence(true);
    const at::Tensor y = block(x);
    if (++next < blocks) return y;
    state->tap->set_sequence(false);
    return gather_slices(y, 1, /*add=*/false, state->group);
  };
}

at::Tensor TensorParallel::gather_logits(const at::Tensor& logits) const {
  const c10::NoGradGuard no_grad;
  const comm::Group& group = state_->group;
  const auto cut = std::find_if(state_->cuts.begin(), state_->cuts.end(), [](const TensorCut& one) {
    return one.style.cut == TensorStyle::Cut::vocabulary && one.sizes.size() == 2;
  });
  TORCH_CHECK_VALUE(cut != state_->cuts.end(), "gather_logits: the plan divides no vocabulary, so the logits are ",
                    "complete.");
  if (group.size() == 1) return logits;
  const int64_t classes = cut->sizes[0], most = (classes + group.size() - 1) / group.size();
  const int64_t count = cut->ranges(group.rank(), group.size()).front().second;
  TORCH_CHECK_VALUE(logits.size(-1) == count, "gather_logits: expected ", count, " classes in the last dim, got ",
                    logits.size(-1), ".");
  std::vector<int64_t> sizes = logits.sizes().vec();
  sizes.back() = most;
  const at::Tensor padded = at::zeros(sizes, logits.options());
  padded.narrow(-1, 0, count).copy_(logits);
  const at::Tensor all = all_gather_op(padded, group);
  std::vector<at::Tensor> parts;
  parts.reserve(static_cast<size_t>(group.size()));
  for (int rank = 0; rank < group.size(); ++rank)
    parts.push_back(all[rank].narrow(-1, 0, cut->ranges(rank, group.size()).front().second));
  return at::cat(parts, -1);
}

at::Tensor TensorParallel::complete_logits(const at::Tensor& logits) const {
  return logits.defined() && has_divided_logits() ? gather_logits(logits) : logits;
}

std::vector<comm::Shard> TensorParallel::shards() const {
  return model_shards(state_->inner, state_->cuts, state_->group);
}

std::vector<comm::Shard> TensorParallel::shards_of(const NamedTensors& local) const {
  return complete_shards(whole_shards(local));
}

std::vector<comm::Shard> TensorParallel::complete_shards(const std::vector<comm::Shard>& of_slices) const {
  return parallel::complete_shards(state_->inner, of_slices, state_->cuts, state_->group);
}

void TensorParallel::restore_model() const {
  if (state_->group.size() == 1) return;
  const c10::NoGradGuard no_grad;
  std::vector<comm::Shard> parts;
  for (const TensorCut& cut : state_->cuts) {
    for (comm::Shard& part : shards_of({{cut.name, cut.parameter.detach()}})) parts.push_back(std::move(part));
  }
  const NamedTensors complete = comm::gather(parts, state_->group);
  for (size_t i = 0; i < complete.size(); ++i) {
    at::Tensor parameter = state_->cuts[i].parameter;
    parameter.mutable_grad().reset();
    parameter.set_data(complete[i].second.to(parameter.device()));
  }
}

std::vector<comm::Shard> TensorParallel::state_shards(const torch::optim::Optimizer& optimizer) const {
  return optimizer_shards(optimizer, state_->cuts, state_->group);
}

std::vector<comm::Shard> TensorParallel::wanted_shards(const torch::optim::Optimizer& optimizer,
                                                       const std::vector<SavedTensor>& saved) const {
  return wanted_optimizer_shards(optimizer, saved, state_->cuts, state_->group);
}

void TensorParallel::load_shards(torch::optim::Optimizer& optimizer, const std::vector<comm::Shard>& filled) const {
  load_optimizer_shards(optimizer, filled, state_->cuts, state_->group);
}

std::string TensorParallel::describe() const {
  int64_t own = 0, whole = 0;
  std::set<const at::TensorImpl*> seen;
  for (const auto& [name, parameter] : state_->inner.named_parameters()) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    own += static_cast<int64_t>(parameter.nbytes());
    const TensorCut* cut = find_cut(state_->cuts, parameter);
    whole += cut ? c10::multiply_integers(cut->sizes) * static_cast<int64_t>(parameter.element_size())
                 : static_cast<int64_t>(parameter.nbytes());
  }
  return c10::str(state_->group.size(), " ranks, ", state_->cuts.size(), " of ", seen.size(), " parameters divided, ",
                  mebibytes(own), " of ", mebibytes(whole), " MiB on this rank");
}

bool is_divided(const at::Tensor& parameter) {
  const ShardedGradients* owner = gradient_part(parameter).owner;
  while (owner && owner->outer()) owner = owner->outer();
  return dynamic_cast<const State*>(owner) != nullptr;
}

TensorParallel parallelize(const Model& model, const comm::Group& group, const TensorPlan& plan,
                           const TensorOptions& options) {
  check_same_start(model, group, plan);
  std::vector<TensorCut> cuts = find_cuts(model, plan, group.size());
  if (options.broadcast && group.size() > 1) {
    broadcast_tensors(model.named_parameters(), 0, group);
    broadcast_tensors(model.named_buffers(), 0, group);
  }
  if (group.size() > 1) {
    for (const TensorCut& cut : cuts) divide(cut, group);
  }
  auto state = std::make_shared<TensorParallel::State>(model, group, std::move(cuts), options.generator);
  state->model = Model(model.name(), std::make_shared<DividedModel>(model, state));
  return TensorParallel(std::move(state));
}

TensorParallel parallelize(const Model& model, const comm::Mesh& mesh, const std::string& axis, const TensorPlan& plan,
                           const TensorOptions& options) {
  return parallelize(model, mesh.group(axis), plan, options);
}

}  // namespace bellows::parallel
