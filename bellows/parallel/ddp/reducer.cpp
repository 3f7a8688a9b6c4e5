#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <limits>
#include <optional>
#include <utility>

#include "bellows/comm/group_impl.h"
#include "bellows/parallel/ddp/reducer.h"
#include "bellows/parallel/hooks/hook_exchange_impl.h"
#include "bellows/report/trace_writer.h"
#include "bellows/tap/deferral.h"
#include "bellows/tap/gradient_tap.h"

namespace bellows::parallel {

struct Reducer::State {
  NamedTensors parameters;
  DistributedOptions options;
  comm::Group group;                      ///< of the gradients
  std::optional<comm::Group> hook_group;  ///< of the hook
  int64_t steps = 0;                      ///< number of steps with an exchange
  size_t buckets = 0;                     ///< current number of buckets
  double hook_scale = 1;                  ///< factor relative to the mean over all ranks
  bool announced = false;                 ///< an exchange after backward has been announced and has not begun
  bool delayed = false;                   ///< whether the first exchange of a static graph was requested
  HookExchange* hook = nullptr;           ///< owned by the reducer
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;  ///< required by the search for unused parameters
};

namespace {

/// Runs below autograd, so that gradients in buckets are not autograd views. libtorch's zero_grad(false) does not
/// support views.
using PlainViews = at::AutoDispatchBelowADInplaceOrView;

/// Passes the number of ranks by which gradients are divided to c10d::Reducer, in the form that it expects.
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

/// A scope for observers, from its creation to the end of the backward pass: c10d::Reducer waits for the gradients there.
std::shared_ptr<void> waiting_scope() {
  auto scope = std::make_shared<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (scope->isActive()) scope->before(std::string(wait_scope_prefix) + "gradients");
  return scope;
}

/// Calls waiting_scope() when backward has computed all gradients, before c10d::Reducer waits for them.
void note_waiting(const std::vector<at::Tensor>& outputs) {
  if (!at::hasCallbacks()) return;  // no observer
  const auto queue = [](const at::Tensor&) {
    tap::at_end_of_backward([] {
      tap::at_end_of_backward([scope = waiting_scope()]() mutable { scope.reset(); });  // after the one of the reducer
    });
  };
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    output.register_hook(queue);
    return;
  }
}

/// Gradients of the last layers become ready first. If buckets are rebuilt after the first step, that step uses one
/// bucket per dtype. Then ranks that lack a parameter cannot exchange buckets in a wrong order.
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

/// Names of the parameters that c10d's message lists by number after "did not receive grad for rank 0:".
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
  TORCH_CHECK(missing.empty(), "DistributedDataParallel: the last step computed no gradient for ", missing,
              ", so not all gradients were exchanged. ",
              find_unused
                  ? "Pass the tensors from which backward starts to before_backward()."
                  : "Set find_unused_parameters, or set requires_grad to false for parameters that are never trained.");
  TORCH_CHECK(message.find("static_graph") == std::string::npos,
              "DistributedDataParallel: the last step used different parameters than the first one, but static_graph "
              "is set. Set find_unused_parameters instead.");
  throw;
}

}  // namespace

void broadcast_tensors(const NamedTensors& tensors, int root, const comm::Group& group) {
  constexpr size_t buffer_bytes = 250 << 20;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> values;
  values.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    // Without its version counter, because the broadcast must not invalidate tensors saved by a pending backward.
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

/// Params: buckets – parameter numbers; empty: the default before the first step
void Reducer::make(std::vector<std::vector<size_t>> buckets) {
  state_->hook = nullptr;
  state_->logger.reset();
  state_->reducer.reset();  // first, to remove its hooks from the parameters
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
  TORCH_CHECK(
      !std::exchange(state_->announced, false),
      "DistributedDataParallel: the last compiled step did not exchange its gradients, because its backward did not "
      "start from the tensors that before_backward() got. Pass the loss.");
  if (exchange) {
    ++state_->steps;
    state_->reducer->prepare_for_forward();
  }
  make_due_buckets();
}

void Reducer::make_due_buckets() {
  try {
    const PlainViews plain;
    const tap::EagerGuard eager;  // new buckets look at the memory of gradients
    if (state_->reducer->rebuild_buckets()) state_->buckets = bucket_bytes().size();
  } catch (const c10::Error& error) {
    explain_unfinished(error.what_without_backtrace(), state_->parameters, state_->options.find_unused_parameters);
  }
}

/// c10d::Reducer looks at the memory of each gradient as soon as backward has accumulated it. Therefore its hooks are
/// called at the end, when the gradients have values.
void Reducer::exchange_after_backward(const std::vector<at::Tensor>& outputs) {
  TORCH_CHECK_VALUE(!state_->options.find_unused_parameters && !state_->options.static_graph,
                    "DistributedDataParallel: find_unused_parameters and static_graph do not work in a compiled step. "
                    "Compile only the forward pass, or turn these options off.");
  TORCH_CHECK_VALUE(
      std::any_of(outputs.begin(), outputs.end(), [](const at::Tensor& one) { return one.requires_grad(); }),
      "before_backward: in a compiled step, expected the tensors from which backward starts, got none that "
      "requires a gradient.");
  state_->announced = true;
  const auto exchange = [](const std::shared_ptr<State>& state) {
    if (!std::exchange(state->announced, false)) return;  // one exchange, although each output has a hook
    // Ends after the callback that c10d::Reducer adds when the last bucket is under way.
    auto eager = std::make_shared<tap::EagerGuard>();
    if (state->hook) state->hook->begin(state->buckets, state->hook_scale);
    state->reducer->prepare_for_backward({});
    for (size_t i = state->parameters.size(); i-- > 0;) {
      if (state->parameters[i].second.grad().defined()) state->reducer->autograd_hook(i);
    }
    tap::at_end_of_backward([eager, scope = waiting_scope()]() mutable { scope.reset(), eager.reset(); });
  };
  const auto queue = [weak = std::weak_ptr<State>(state_), exchange](const at::Tensor&) {
    if (const auto state = weak.lock()) tap::at_end_of_backward([state, exchange] { exchange(state); });
  };
  for (const at::Tensor& output : outputs) {
    if (output.requires_grad()) output.register_hook(queue);
  }
}

void Reducer::begin_backward(const std::vector<at::Tensor>& outputs) {
  if (tap::active_deferral()) return exchange_after_backward(outputs);
  note_waiting(outputs);
  if (state_->hook) state_->hook->begin(state_->buckets, state_->hook_scale);
  const bool search = state_->options.find_unused_parameters && !state_->options.static_graph;
  state_->reducer->prepare_for_backward(search ? outputs : std::vector<at::Tensor>());
  if (!state_->options.static_graph || state_->delayed) return;
  // The first step of a static graph counts the uses of each gradient, which are only known at its end.
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
  if (first_of_static) exchange_used();  // same order as in the reducer
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
