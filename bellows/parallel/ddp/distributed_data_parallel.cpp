#include "bellows/parallel/ddp/distributed_data_parallel.h"

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <numeric>
#include <optional>
#include <unordered_set>
#include <utility>

#include "bellows/comm/collectives.h"
#include "bellows/core/stats.h"
#include "bellows/parallel/ddp/reducer.h"
#include "bellows/parallel/ddp/same_model.h"
#include "bellows/parallel/ddp/same_weights.h"

namespace bellows::parallel {

/// The information that ranks inside join() exchange before each forward.
struct Present {
  int ranks = 0;          ///< number of ranks that have data left
  int first = 0;          ///< the first of them
  bool exchange = false;  ///< whether they exchange gradients
};

struct DistributedDataParallel::State {
  Model model;
  comm::Group group;
  DistributedOptions options;
  std::unique_ptr<Reducer> reducer;      ///< null in a world of one
  std::unique_ptr<SameWeights> weights;  ///< null in a world of one
  std::optional<JoinOptions> joining;    ///< inside join()
  Present last;                          ///< of the last exchange in which a rank had data
  int no_syncs = 0;                      ///< number of NoSync guards; if not 0, nothing is exchanged
  bool buffers_due = true;               ///< no forward has run since the last exchange

  bool exchanges() const { return no_syncs == 0; }
};

namespace {

using Ranks = DistributedDataParallel::State;

/// Lists each parameter once, although tied weights have several names.
NamedTensors trained_parameters(const Model& model) {
  NamedTensors result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& [name, parameter] : model.named_parameters()) {
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second)
      result.emplace_back(name, parameter);
  }
  return result;
}

/// Params: all – [ranks, 2]: has data, exchanges gradients
Present present_of(const at::Tensor& all) {
  Present present;
  const auto* row = all.const_data_ptr<int64_t>();
  for (int rank = 0; rank < all.size(0); ++rank, row += 2) {
    if (row[0] == 0) continue;
    if (present.ranks++ == 0) present = {.ranks = 1, .first = rank, .exchange = row[1] != 0};
    TORCH_CHECK_VALUE(present.exchange == (row[1] != 0), "DistributedDataParallel: of ranks ", present.first, " and ",
                      rank, ", only one is in no_sync().");
  }
  return present;
}

Present meet(Ranks& state, bool has_data) {
  const Present present =
      present_of(comm::all_gather(at::tensor({int64_t{has_data}, int64_t{state.exchanges()}}), state.group));
  if (present.ranks == 0) return present;
  state.reducer->divide_by(state.joining->divide_by_all ? state.group.size() : present.ranks);
  return state.last = present;
}

/// Steps before a forward, on ranks with and without data.
void begin_forward(Ranks& state, bool exchange, int buffers_from) {
  state.reducer->begin_forward(exchange);
  if (state.options.broadcast_buffers && state.buffers_due)
    broadcast_tensors(state.model.named_buffers(), buffers_from, state.group);
  state.buffers_due = false;
}

/// Takes part in the exchanges of the other ranks until all have finished.
void take_part(Ranks& state) {
  for (Present present; (present = meet(state, false)).ranks > 0;) {
    begin_forward(state, present.exchange, present.first);
    if (!present.exchange) continue;
    state.reducer->take_part_with_zeros();
    state.buffers_due = true;
  }
  const bool all_to_the_end = state.last.ranks == 0 || state.last.ranks == state.group.size();
  if (!all_to_the_end) broadcast_tensors(state.model.state_dict(), state.last.first, state.group);
}

/// Params: places – [parameters, 2], the bucket and the number of each parameter
std::vector<std::vector<size_t>> buckets_in(const at::Tensor& places, const NamedTensors& parameters) {
  const auto count = static_cast<int64_t>(parameters.size());
  bool fits = places.scalar_type() == at::kLong && places.sizes() == at::IntArrayRef{count, 2};
  const at::Tensor dense = places.contiguous();
  std::vector<std::vector<size_t>> buckets;
  std::vector<bool> seen(parameters.size());
  for (int64_t i = 0; fits && i < count; ++i) {
    const int64_t* place = dense.const_data_ptr<int64_t>() + 2 * i;
    const auto bucket = static_cast<size_t>(place[0]), number = static_cast<size_t>(place[1]);
    fits = number < seen.size() && !seen[number] && (bucket == buckets.size() || bucket + 1 == buckets.size());
    if (!fits) break;
    if (bucket == buckets.size()) buckets.emplace_back();
    buckets.back().push_back(number);
    seen[number] = true;
    fits = parameters[number].second.scalar_type() == parameters[buckets.back().front()].second.scalar_type();
  }
  TORCH_CHECK_VALUE(fits, "DistributedDataParallel: the state's buckets, ", places.scalar_type(), places.sizes(),
                    ", do not match the ", count, " trained parameters. Resume with the model of the saved run.");
  return buckets;
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(const Model& model, const comm::Group& group,
                                                 const DistributedOptions& options)
    : state_(std::make_shared<State>(State{.model = model, .group = group, .options = options})) {
  TORCH_CHECK_VALUE(options.bucket_bytes > 0 && options.first_bucket_bytes > 0,
                    "DistributedDataParallel: expected bucket_bytes and first_bucket_bytes above 0, got ",
                    options.bucket_bytes, " and ", options.first_bucket_bytes, ".");
  const NamedTensors trained = trained_parameters(model);
  check_same_options("DistributedDataParallel", {}, group);
  check_same_model(model, group);
  TORCH_CHECK_VALUE(!trained.empty(), "DistributedDataParallel: no parameter of \"", model.name(),
                    "\" has requires_grad, so there is nothing to exchange. Call the model itself.");
  if (group.size() == 1) return;
  broadcast_tensors(model.state_dict(), 0, group);
  state_->reducer = std::make_unique<Reducer>(trained, group, options);
  state_->weights = std::make_unique<SameWeights>(trained, state_->reducer->group());
}

at::Tensor DistributedDataParallel::forward(const at::Tensor& input) const {
  before_forward();
  at::Tensor output = state_->model.forward(input);
  before_backward({output});
  return output;
}

void DistributedDataParallel::before_forward() const {
  if (!state_->reducer || !c10::GradMode::is_enabled()) return;
  state_->weights->check();
  const int buffers_from = state_->joining ? meet(*state_, true).first : 0;
  begin_forward(*state_, state_->exchanges(), buffers_from);
}

void DistributedDataParallel::before_backward(const std::vector<at::Tensor>& outputs) const {
  if (!state_->reducer || !c10::GradMode::is_enabled() || !state_->exchanges()) return;
  const DistributedOptions& options = state_->options;
  TORCH_CHECK_VALUE(!outputs.empty() || !(options.find_unused_parameters || options.static_graph),
                    "before_backward: expected the tensors from which backward ",
                    "starts, because find_unused_parameters or static_graph is set; got none.");
  state_->reducer->begin_backward(outputs);
  // Before backward begins, a rank may throw and retry without another broadcast, in which no other rank would take
  // part.
  const auto began = [state = std::weak_ptr<State>(state_)] {
    if (const auto alive = state.lock()) alive->buffers_due = true;
  };
  if (state_->joining) return began();  // ranks that have finished hold other weights until join() ends
  state_->weights->watch(outputs, began);
}

DistributedDataParallel::NoSync::NoSync(std::shared_ptr<State> state) : state_(std::move(state)) {
  ++state_->no_syncs;
}

DistributedDataParallel::NoSync::~NoSync() {
  --state_->no_syncs;
}

void DistributedDataParallel::join(const std::function<void()>& steps, const JoinOptions& options) const {
  if (!state_->reducer) return steps();
  struct Joining {
    ~Joining() { state.joining.reset(); }
    State& state;
  } const joining{*state_};
  state_->joining = options;
  state_->last = {};
  steps();
  take_part(*state_);
  state_->reducer->divide_by(state_->group.size());
}

void DistributedDataParallel::broadcast_buffers() const {
  parallel::broadcast_buffers(state_->model, state_->group);
}

NamedTensors DistributedDataParallel::state() const {
  if (!state_->reducer) return {};
  std::vector<int64_t> places;
  int64_t bucket = 0;
  for (const std::vector<size_t>& numbers : state_->reducer->buckets()) {
    for (const size_t number : numbers) {
      places.push_back(bucket);
      places.push_back(static_cast<int64_t>(number));
    }
    ++bucket;
  }
  return {{"buckets", at::tensor(places).view({-1, 2})}};
}

void DistributedDataParallel::restore(const NamedTensors& state) const {
  if (!state_->reducer) return;
  for (const auto& [name, value] : state) {
    if (name == "buckets") state_->reducer->begin_with(buckets_in(value, trained_parameters(state_->model)));
  }
}

const Model& DistributedDataParallel::model() const {
  return state_->model;
}

const comm::Group& DistributedDataParallel::group() const {
  return state_->group;
}

std::string DistributedDataParallel::describe() const {
  if (!state_->reducer) return "1 rank, without exchange";
  const std::vector<int64_t> buckets = state_->reducer->bucket_bytes();
  const auto bytes = static_cast<double>(std::accumulate(buckets.begin(), buckets.end(), int64_t{0}));
  return c10::str(state_->group.size(), " ranks, ", buckets.size(), buckets.size() == 1 ? " bucket, " : " buckets, ",
                  format_bytes(bytes), " per step, gradients ",
                  state_->options.gradient_as_bucket_view ? "in the buckets" : "outside of the buckets",
                  state_->options.hook ? ", " + state_->options.hook->describe() : "");
}

}  // namespace bellows::parallel
