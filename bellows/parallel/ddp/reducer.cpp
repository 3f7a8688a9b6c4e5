#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <limits>
#include <optional>
#include <utility>

#include "bellows/comm/group_impl.h"
#include "bellows/parallel/ddp/reducer.h"
#include "bellows/parallel/hooks/hook_exchange_impl.h"

namespace bellows::parallel {

struct Reducer::State {
  NamedTensors parameters;
  DistributedOptions options;
  comm::Group group;                      ///< of the gradients' own
  std::optional<comm::Group> hook_group;  ///< of the hook's
  int64_t steps = 0;                      ///< that exchanged
  size_t buckets = 0;                     ///< how many there are now
  double hook_scale = 1;                  ///< of the mean over all ranks
  bool delayed = false;                   ///< a static graph's first exchange has been asked for
  HookExchange* hook = nullptr;           ///< the reducer's
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;  ///< which the search for unused parameters cannot do without
};

namespace {

/// Below autograd, where a gradient in a bucket is a tensor like any other: of autograd's views libtorch's
/// zero_grad(false) could not be called.
using PlainViews = at::AutoDispatchBelowADInplaceOrView;

/// Over how many ranks gradients are to be divided, in the form in which c10d::Reducer takes it.
class Divisor final : public c10d::Work {
 public:
  explicit Divisor(int ranks)
      : tensors_({at::scalar_tensor(ranks, at::kInt)}),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors())) {
    future_->markCompleted(c10::IValue(tensors_));
  }
  bool wait(std::chrono::milliseconds) override { return true; }
  std::vector<at::Tensor> result() override { return tensors_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  std::vector<at::Tensor> tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// The last layers' gradients come first. Where buckets are made anew after the first step, that one has a single bucket of
/// each dtype: the order in which ranks without a parameter would exchange cannot be wrong then.
std::vector<std::vector<size_t>> first_buckets(const std::vector<at::Tensor>& parameters,
                                               const DistributedOptions& options) {
  std::vector<size_t> limits = {std::numeric_limits<size_t>::max()};
  if (options.find_unused_parameters && !options.static_graph)
    limits = {static_cast<size_t>(options.first_bucket_bytes), static_cast<size_t>(options.bucket_bytes)};
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, limits));
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

std::shared_ptr<c10d::Reducer> make_reducer(const NamedTensors& named, const comm::Group& group,
                                            const DistributedOptions& options,
                                            std::vector<std::vector<size_t>> buckets) {
  std::vector<at::Tensor> parameters;
  std::unordered_map<size_t, std::string> names;
  parameters.reserve(named.size());
  for (const auto& [name, parameter] : named) {
    names[parameters.size()] = name;
    parameters.push_back(parameter);
  }
  if (buckets.empty()) buckets = first_buckets(parameters, options);
  const PlainViews plain;
  return std::make_shared<c10d::Reducer>(std::move(parameters), std::move(buckets), group.state()->process_group,
                                         /*expect_sparse_gradients=*/std::vector<bool>(named.size(), false),
                                         options.bucket_bytes, options.find_unused_parameters,
                                         options.gradient_as_bucket_view, std::move(names), options.first_bucket_bytes,
                                         /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
                                         /*bucket_bytes_cap_list=*/std::vector<int64_t>());
}

/// Names of the parameters whose numbers stand behind "did not receive grad for rank 0:" in c10d's message.
std::string missing_names(const std::string& message, const NamedTensors& parameters) {
  const std::string marker = "Parameter indices which did not receive grad for rank ";
  const size_t found = message.find(marker);
  if (found == std::string::npos) return "";
  const size_t begin = message.find(':', found), end = message.find('\n', found);
  std::vector<std::string> missing;
  size_t number = 0;
  bool inside = false;
  for (const char letter : message.substr(begin, end == std::string::npos ? end : end - begin) + " ") {
    const bool digit = letter >= '0' && letter <= '9';
    if (digit) number = number * 10 + static_cast<size_t>(letter - '0');
    if (!digit && inside && number < parameters.size()) missing.push_back(parameters[number].first);
    if (!digit) number = 0;
    inside = digit;
  }
  constexpr size_t shown = 8;
  const size_t more = missing.size() - std::min(missing.size(), shown);
  missing.resize(missing.size() - more);
  return c10::Join(", ", missing) + (more ? c10::str(" and ", more, " more") : "");
}

[[noreturn]] void explain_unfinished(const std::string& message, const NamedTensors& parameters, bool find_unused) {
  const std::string missing = missing_names(message, parameters);
  TORCH_CHECK(missing.empty(), "DistributedDataParallel: the last step gave no gradient to ", missing,
              ", so that not all gradients were exchanged. ",
              find_unused ? "Give before_backward() what backward starts from."
                          : "Set find_unused_parameters, or requires_grad false for what is never trained.");
  TORCH_CHECK(
      message.find("static_graph") == std::string::npos,
      "DistributedDataParallel: the last step used other parameters than the first, which static_graph promised ",
      "not to. Set find_unused_parameters instead.");
  throw;
}

}  // namespace

void broadcast_tensors(const NamedTensors& tensors, int root, const comm::Group& group) {
  constexpr size_t buffer_bytes = 250 << 20;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  values.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    // Without its version: what a pending backward saved of a buffer is none of its business.
    if (tensor.numel() > 0) values.push_back(tensor.variable_data());
  }
  if (group.size() > 1 && !values.empty())
    c10d::broadcast_coalesced(group.state()->process_group, values, buffer_bytes, root);
}

Reducer::Reducer(const NamedTensors& parameters, const comm::Group& group, const DistributedOptions& options)
    : state_(std::make_shared<State>(
          State{.parameters = parameters, .options = options, .group = comm::duplicate(group, "gradients")})) {
  if (options.hook) state_->hook_group = comm::duplicate(group, "hook");
  make({});
}

/// Params: buckets – numbers of parameters; none: as they are before the first step
void Reducer::make(std::vector<std::vector<size_t>> buckets) {
  state_->hook = nullptr;
  state_->logger.reset();
  state_->reducer.reset();  // its hooks on the parameters go first
  state_->reducer = make_reducer(state_->parameters, state_->group, state_->options, std::move(buckets));
  state_->logger = std::make_shared<c10d::Logger>(state_->reducer);
  state_->reducer->set_logger(state_->logger);
  if (state_->options.static_graph) state_->reducer->set_static_graph();
  if (state_->hook_group) {
    auto hook = std::make_unique<HookExchange>(state_->options.hook, *state_->hook_group);
    state_->hook = hook.get();
    state_->reducer->register_comm_hook(std::move(hook));
  }
  state_->buckets = bucket_bytes().size();
}

Reducer::~Reducer() = default;

void Reducer::divide_by(int ranks) {
  const bool all = ranks == state_->group.size();
  c10::intrusive_ptr<c10d::Work> divisor;
  if (!all) divisor = c10::make_intrusive<Divisor>(ranks);
  state_->reducer->set_forward_pass_work_handle(std::move(divisor), /*useStaticWorldSize=*/all);
  state_->hook_scale = static_cast<double>(state_->group.size()) / ranks;
}

void Reducer::begin_forward(bool exchange) {
  if (exchange) {
    ++state_->steps;
    state_->reducer->prepare_for_forward();
  }
  make_due_buckets();
}

void Reducer::make_due_buckets() {
  try {
    const PlainViews plain;
    if (state_->reducer->rebuild_buckets()) state_->buckets = bucket_bytes().size();
  } catch (const c10::Error& error) {
    explain_unfinished(error.what_without_backtrace(), state_->parameters, state_->options.find_unused_parameters);
  }
}

void Reducer::begin_backward(const std::vector<at::Tensor>& outputs) {
  if (state_->hook) state_->hook->begin(state_->buckets, state_->hook_scale);
  const bool search = state_->options.find_unused_parameters && !state_->options.static_graph;
  state_->reducer->prepare_for_backward(search ? outputs : std::vector<at::Tensor>());
  if (!state_->options.static_graph || state_->delayed) return;
  // The first step of a static graph counts how often each gradient comes; only its end knows.
  const auto delay = [weak = std::weak_ptr<State>(state_)](const at::Tensor&) {
    const auto state = weak.lock();
    if (!state || std::exchange(state->delayed, true)) return;
    torch::autograd::Engine::get_default_engine().queue_callback([state] { state->reducer->delay_all_reduce(); });
  };
  for (const at::Tensor& output : outputs) {
    if (output.requires_grad()) output.register_hook(delay);
  }
}

void Reducer::take_part_with_zeros() {
  c10d::Reducer& reducer = *state_->reducer;
  const bool first_of_static = state_->options.static_graph && state_->steps == 1;
  std::vector<at::Tensor> used;
  if (first_of_static || (state_->options.find_unused_parameters && !state_->options.static_graph))
    used = {at::zeros_like(reducer.get_local_used_map_on_device())};
  c10::intrusive_ptr<c10d::Work> used_work;
  const auto exchange_used = [&] {
    if (!used.empty()) used_work = state_->group.state()->process_group->allreduce(used);
  };
  if (first_of_static) exchange_used();  // the order in which the reducer calls them
  if (state_->hook) state_->hook->begin(state_->buckets, state_->hook_scale);
  std::vector<c10d::GradBucket> zeros = reducer.get_grad_buckets(/*return_zero_tensors=*/true);
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> means;
  means.reserve(zeros.size());
  for (c10d::GradBucket& bucket : zeros) means.push_back(reducer.run_comm_hook(bucket));
  if (!first_of_static) exchange_used();
  for (const auto& mean : means) mean->waitAndThrow();
  if (used_work) used_work->wait();
  if (!first_of_static) reducer.push_rebuilt_params_for_all_indices();
}

const comm::Group& Reducer::group() const {
  return state_->group;
}

std::vector<int64_t> Reducer::bucket_bytes() const {
  std::vector<int64_t> bytes;
  const auto buckets = state_->reducer->get_grad_buckets(/*return_zero_tensors=*/false);
  bytes.reserve(buckets.size());
  for (const auto& bucket : buckets) bytes.push_back(static_cast<int64_t>(bucket.getBuffer().nbytes()));
  return bytes;
}

std::vector<std::vector<size_t>> Reducer::buckets() {
  if (state_->steps > 0) make_due_buckets();
  std::unordered_map<const c10::TensorImpl*, size_t> numbers;
  for (const auto& [name, parameter] : state_->parameters)
    numbers.emplace(parameter.unsafeGetTensorImpl(), numbers.size());
  std::vector<std::vector<size_t>> result;
  for (const c10d::GradBucket& bucket : state_->reducer->get_grad_buckets(/*return_zero_tensors=*/false)) {
    std::vector<size_t>& own = result.emplace_back();
    for (const at::Tensor& parameter : bucket.getParameters())
      own.push_back(numbers.at(parameter.unsafeGetTensorImpl()));
  }
  return result;
}

void Reducer::begin_with(const std::vector<std::vector<size_t>>& buckets) {
  make(buckets);
}

}  // namespace bellows::parallel
