#include "bellows/parallel/pipeline/pipeline.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include "bellows/comm/collectives.h"
#include "bellows/comm/failure_notice.h"
#include "bellows/core/error.h"
#include "bellows/core/seed.h"
#include "bellows/core/sharded_gradients.h"
#include "bellows/core/stats.h"
#include "bellows/parallel/average_gradients.h"
#include "bellows/parallel/ddp/reducer.h"
#include "bellows/parallel/ddp/same_model.h"
#include "bellows/parallel/pipeline/held_tensors.h"
#include "bellows/parallel/pipeline/replicas.h"
#include "bellows/parallel/pipeline/stage_exchange.h"
#include "bellows/parallel/pipeline/stage_runner.h"
#include "bellows/parallel/pipeline/stages.h"
#include "bellows/parallel/zero/gradient_buckets.h"
#include "bellows/report/trace_writer.h"

namespace bellows::parallel {

namespace {

/// The actions of forward(): each rank runs its stages for one micro-batch after the other.
PipelineSchedule forward_only(const PipelineSchedule& schedule) {
  PipelineSchedule result{.name = schedule.name + " forward",
                          .micro_batches = schedule.micro_batches,
                          .stage_ranks = schedule.stage_ranks,
                          .ranks = std::vector<std::vector<PipelineAction>>(schedule.ranks.size())};
  for (int micro_batch = 0; micro_batch < schedule.micro_batches; ++micro_batch) {
    for (int stage = 0; stage < schedule.stages(); ++stage) {
      const auto rank = static_cast<size_t>(schedule.stage_ranks[static_cast<size_t>(stage)]);
      result.ranks[rank].push_back({PipelineWork::forward, stage, micro_batch});
    }
  }
  return result;
}

std::string phase_of(const PipelineAction& action) {
  constexpr const char* names[] = {"forward", "backward", "backward of the input", "backward of the weights"};
  return c10::str(names[static_cast<size_t>(action.work)], " of micro-batch ", action.micro_batch, " in stage ",
                  action.stage);
}

/// A schedule and the objects that run it on this rank. They refer to each other.
struct StageProgram {
  StageProgram(PipelineSchedule the_schedule, const ModelParts& parts, const std::vector<int>& first_parts,
               const comm::Group& group, c10::Device device)
      : schedule(std::move(the_schedule)), exchange(schedule, group, device), runner(parts, first_parts, exchange) {}
  StageProgram(const StageProgram&) = delete;
  StageProgram& operator=(const StageProgram&) = delete;

  const PipelineSchedule schedule;
  StageExchange exchange;
  StageRunner runner;
  std::string input_sizes = {};  ///< of the last step
};

/// A parameter that several ranks hold, and the group of these ranks.
struct TiedWeight {
  at::Tensor parameter;
  comm::Group ranks;
};

}  // namespace

struct Pipeline::State final : ShardedGradients {
  State(ModelParts the_parts, comm::Group the_group, PipelineOptions the_options, HeldTensors the_tensors)
      : parts(std::move(the_parts)),
        options(std::move(the_options)),
        rank(the_group.rank()),
        group(std::move(the_group)),
        device(parts.parts.front().tensors.empty() ? c10::Device(c10::kCPU)
                                                   : parts.parts.front().tensors.front().device()),
        tensors(std::move(the_tensors)) {
    if (group->size() > 1 || options.tensor) {
      std::vector<std::pair<at::Tensor, at::Tensor>> own;
      for (const at::Tensor& parameter : tensors.own()) own.emplace_back(parameter, parameter);
      gradients.emplace(*this, std::move(own), tensors.copies());
    }
    connect();
  }
  virtual ~State() = default;

  void connect() {
    training.emplace(options.schedule, parts, options.first_parts, *group, device);
    evaluation.emplace(forward_only(options.schedule), parts, options.first_parts, *group, device);
    std::map<std::vector<int>, comm::Group> groups;
    for (const HeldTensors::Parameter& one : tensors.all()) {
      if (one.ranks.size() < 2 || !tensors.holds(one.tensor)) continue;
      auto known = groups.find(one.ranks);
      if (known == groups.end()) {
        std::vector<int> of_world;
        for (const int index : one.ranks) of_world.push_back(group->ranks()[static_cast<size_t>(index)]);
        known = groups.emplace(one.ranks, comm::subgroup(*group, of_world, group->name() + "/tied")).first;
      }
      tied.push_back({one.tensor, known->second});
    }
  }

  at::Tensor over_ranks(at::Tensor number, Over op) const override {
    TORCH_CHECK(group, failure);
    const comm::Reduce reduce = op == Over::max ? comm::Reduce::max : comm::Reduce::sum;
    at::Tensor result = comm::all_reduce(number.clone(), *group, reduce);
    return options.tensor ? comm::all_reduce(result, options.tensor->group(), reduce) : result;
  }

  bool is_last() const { return options.schedule.stage_ranks.back() == rank; }
  void run(StageProgram& program, StageStep step, const std::vector<at::Tensor>& inputs);
  [[noreturn]] void fail(const std::string& phase, const std::string& reason);

  ModelParts parts;
  PipelineOptions options;
  const int rank;
  std::optional<comm::Group> group;  ///< empty after a failure
  const c10::Device device;
  HeldTensors tensors;
  std::optional<ShardedGradientsEntry> gradients;
  std::optional<StageProgram> training, evaluation;  ///< of step() and forward(); empty after a failure
  std::vector<TiedWeight> tied;
  std::vector<TimedAction> measured;  ///< of the last step
  int64_t steps = 0;
  std::string failure;
};

namespace {

using PipelineState = Pipeline::State;

std::string sizes_text(const std::vector<at::Tensor>& tensors, bool training) {
  std::string text = training ? "training" : "evaluation";
  for (const at::Tensor& tensor : tensors) {
    text += tensor.defined() ? c10::str(" ", tensor.scalar_type(), "[", c10::Join(",", tensor.sizes()), "]") : " none";
  }
  return text;
}

/// The gradients of tied weights before a step, so that only those of the step are added over ranks.
class TiedGradients {
 public:
  explicit TiedGradients(const std::vector<TiedWeight>& tied) : tied_(tied) {
    for (const TiedWeight& one : tied_)
      before_.push_back(std::exchange(at::Tensor(one.parameter).mutable_grad(), at::Tensor()));
  }

  void add_over_ranks() {
    const c10::NoGradGuard no_grad;
    for (size_t i = 0; i < tied_.size(); ++i) {
      at::Tensor parameter = tied_[i].parameter;
      if (!parameter.requires_grad()) {
        parameter.mutable_grad() = before_[i];
        continue;
      }
      at::Tensor sum = parameter.grad().defined() ? parameter.grad() : at::zeros_like(parameter);
      sum = comm::all_reduce(sum.contiguous(), tied_[i].ranks);
      parameter.mutable_grad() = before_[i].defined() ? before_[i].add_(sum) : sum;
    }
  }

 private:
  const std::vector<TiedWeight>& tied_;
  std::vector<at::Tensor> before_;
};

/// A mesh axis that pipeline() uses.
struct PipelineAxis {
  std::string name;
  comm::Group group;
};

std::vector<PipelineAxis> axes_of(const comm::Group& group, const PipelineOptions& options) {
  std::vector<PipelineAxis> axes;
  axes.push_back({"pipeline", group});
  if (options.data) axes.push_back({"data", *options.data});
  if (options.context) axes.push_back({"context", *options.context});
  if (options.tensor) axes.push_back({"tensor", options.tensor->group()});
  return axes;
}

/// Throws if two axes have more than this rank in common.
void check_axes(const std::vector<PipelineAxis>& axes) {
  for (const PipelineAxis& a : axes) {
    for (const PipelineAxis& b : axes) {
      std::vector<int> common;
      std::set_intersection(a.group.ranks().begin(), a.group.ranks().end(), b.group.ranks().begin(),
                            b.group.ranks().end(), std::back_inserter(common));
      TORCH_CHECK_VALUE(a.name == b.name || common.size() == 1, "pipeline: the groups ", a.group.name(), " and ",
                        b.group.name(), " have the ranks [", c10::Join(", ", common),
                        "] in common. Expected only this rank. Use the axes of a mesh.");
    }
  }
}

void check_divided_layers(const ModelParts& parts, const std::optional<TensorParallel>& tensor) {
  const std::vector<at::Tensor> parameters = parts.model.parameters();
  if (!tensor) {
    for (const at::Tensor& parameter : parameters)
      TORCH_CHECK_VALUE(!parallel::is_divided(parameter), "pipeline: tensor parallelism divided the layers of model \"",
                        parts.model.name(), "\". Pass the object of parallelize() as PipelineOptions::tensor.");
    return;
  }
  const std::vector<at::Tensor> divided = tensor->model().parameters();
  TORCH_CHECK_VALUE(std::equal(parameters.begin(), parameters.end(), divided.begin(), divided.end(),
                               [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); }),
                    "pipeline: PipelineOptions::tensor divided another model than \"", parts.model.name(), "\".");
}

/// All ranks throw if they disagree.
void check_same_pipelines(const ModelParts& parts, const comm::Group& group, const PipelineOptions& options) {
  std::vector<std::string> lines = {"seed " + std::to_string(options.seed),
                                    c10::str("first parts ", c10::Join(" ", options.first_parts)),
                                    c10::str("options ", options.broadcast, options.divide_backward, options.measure)};
  std::istringstream schedule(to_text(options.schedule));
  for (std::string line; std::getline(schedule, line);) lines.push_back(line);
  for (const ModelPart& part : parts.parts) lines.push_back("part " + part.name);
  const std::vector<PipelineAxis> axes = axes_of(group, options);
  check_axes(axes);
  for (const PipelineAxis& axis : axes) {
    std::vector<std::string> own = lines;
    for (const PipelineAxis& other : axes) {
      const comm::Group& ranks = other.group;
      if (other.name != axis.name) own.push_back(c10::str(other.name, " rank ", ranks.rank(), " of ", ranks.size()));
    }
    check_same_options("pipeline parallelism", std::move(own), axis.group);
    if (axis.name != "tensor") check_same_model(parts.model, axis.group);  // parts of a vocabulary may differ in size
  }
}

/// The ranks over which gradients and losses are averaged: those of other batches, and those of other parts of the
/// sequences. If each rank counts its whole batch, the mean over both is that over the batches.
std::optional<comm::Group> gradient_ranks(const PipelineOptions& options) {
  if (options.data && options.context) return comm::combine(*options.data, *options.context, "pipeline");
  const std::optional<comm::Group>& one = options.data ? options.data : options.context;
  return one ? std::optional(comm::duplicate(*one, "pipeline")) : std::nullopt;
}

std::vector<int> even_stages(int parts, int stages) {
  return balance_stages(std::vector<PartCost>(static_cast<size_t>(parts), {.time_s = 1}), stages);
}

std::vector<double> weights_of(const MicroBatches& batch, const PipelineStepOptions& options) {
  if (!options.weight) return batch.samples;
  std::vector<double> weights;
  for (const auto& targets : batch.targets) weights.push_back(options.weight(targets));
  return weights;
}

/// The batch of a step.
struct PreparedBatch {
  MicroBatches micro_batches = {};
  std::vector<double> weights = {};
  double factor = 1;  ///< the mean over pipelines of the loss times this number is the mean of all batches
};

MicroBatches divided_batch(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets,
                           const PipelineOptions& options) {
  return MicroBatches::divide(inputs, targets, options.schedule.micro_batches,
                              options.forward_call || options.backward_call);
}

/// With a data axis, all pipelines throw if the batch of one is not valid.
PreparedBatch prepare_batch(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets,
                            const PipelineStepOptions& options, PipelineState& state) {
  const std::optional<comm::Group>& data = state.options.data;
  const auto sum_over_data = [&](double number) {
    try {
      return data ? sum_over_replicas(number, *data, state.device) : number;
    } catch (const std::exception& error) {
      state.fail("the start of the step", user_message(error));
    }
  };
  PreparedBatch batch;
  try {
    batch.micro_batches = divided_batch(inputs, targets, state.options);
    batch.weights = weights_of(batch.micro_batches, options);
  } catch (...) {
    sum_over_data(std::numeric_limits<double>::quiet_NaN());
    throw;
  }
  const double own = std::accumulate(batch.weights.begin(), batch.weights.end(), 0.0), sum = sum_over_data(own);
  TORCH_CHECK_VALUE(!std::isnan(sum) || std::isnan(own),
                    "pipeline: another pipeline of the data axis could not divide ",
                    "its batch. Its ranks report the reason.");
  TORCH_CHECK_VALUE(sum > 0, "pipeline: the weights of the micro-batches must have a positive sum, got ", sum, ".");
  if (data) batch.factor = own * data->size() / sum;
  return batch;
}

/// The exchanges of ZeRO-2 and ZeRO-3 for the parameters of this rank. While this object exists, backward passes leave
/// complete gradients in the parameters, so that tied weights can be added and each step has one exchange.
class ShardedExchanges {
 public:
  explicit ShardedExchanges(const PipelineState& state) {
    for (const at::Tensor& parameter : state.tensors.own()) {
      GradientShards* const shards = GradientShards::of(parameter);
      if (!shards) {
        rest_.push_back(parameter);
      } else if (std::find(exchanges_.begin(), exchanges_.end(), shards) == exchanges_.end()) {
        exchanges_.push_back(shards);
      }
    }
    const std::vector<int> alone = {state.group->ranks()[static_cast<size_t>(state.rank)]};
    const std::vector<int>& expected = state.options.data ? state.options.data->ranks() : alone;
    for (const GradientShards* shards : exchanges_) {
      TORCH_CHECK_VALUE(shards->ranks().ranks() == expected,
                        "pipeline: zero_optimizer() averages gradients over the ranks [",
                        c10::Join(", ", shards->ranks().ranks()), "], but the data and context axes have the ranks [",
                        c10::Join(", ", expected), "]. Pass the group of these axes to zero_optimizer().");
    }
    for (GradientShards* shards : exchanges_) shards->start_keeping();
  }
  ~ShardedExchanges() {
    for (GradientShards* shards : exchanges_) shards->stop_keeping();
  }
  ShardedExchanges(const ShardedExchanges&) = delete;
  ShardedExchanges& operator=(const ShardedExchanges&) = delete;

  /// Averages the gradients over the other pipelines and the other parts of the sequences.
  void average(const std::optional<comm::Group>& data) const {
    if (data) average_gradients(rest_, *data);
    for (GradientShards* shards : exchanges_) shards->exchange_kept();
  }

 private:
  std::vector<GradientShards*> exchanges_;
  std::vector<at::Tensor> rest_;  ///< parameters with complete gradients
};

/// Returns a number of the last stage on all ranks.
double from_last(double number, const PipelineState& state) {
  const at::Tensor value = at::scalar_tensor(number, at::TensorOptions(state.device).dtype(at::kDouble));
  return comm::broadcast(value, state.options.schedule.stage_ranks.back(), *state.group).item<double>();
}

}  // namespace

/// Announces the failure and closes this rank's connections, so that the calls of other ranks also throw.
void PipelineState::fail(const std::string& phase, const std::string& reason) {
  std::optional<comm::Group>& data = options.data;
  const std::string place = c10::str("rank ", rank, data ? c10::str(" of pipeline ", data->rank()) : "");
  const std::string own = c10::str("pipeline: ", place, " failed in ", phase, ": ", reason);
  failure = comm::announced_failure(*group).value_or("");
  if (failure.empty() && data) failure = comm::announced_failure(*data).value_or("");
  failure = comm::announce_failure(*group, failure.empty() ? own : failure);
  if (data) comm::announce_failure(*data, failure);
  if (failure != own) failure += c10::str(" (this is ", place, ", in ", phase, ")");
  gradients.reset();
  training.reset();
  evaluation.reset();
  tied.clear();
  group.reset();
  data.reset();
  TORCH_CHECK(false, failure);
}

void PipelineState::run(StageProgram& program, StageStep step, const std::vector<at::Tensor>& inputs) {
  std::string phase = "the start of the step", sizes = sizes_text(inputs, parts.model.training());
  std::unique_ptr<TensorParallel::Scope> scope;
  try {
    if (step.tensor) {
      scope.reset(new TensorParallel::Scope(step.tensor->scope()));
      std::vector<at::Tensor> compared = inputs;
      for (const auto& targets : step.batch->targets) compared.insert(compared.end(), targets.begin(), targets.end());
      step.tensor->compare_batches(compared);
    }
    if (std::exchange(program.input_sizes, sizes) != sizes) program.exchange.forget_sizes();
    program.exchange.begin_step();
    program.runner.begin(std::move(step));
    measured.clear();
    for (const PipelineAction& action : program.schedule.ranks[static_cast<size_t>(rank)]) {
      phase = phase_of(action);
      const double start_us = options.measure ? trace_now_us() : 0;
      program.runner.run(action);
      if (options.measure) measured.push_back({action, start_us / 1e6, (trace_now_us() - start_us) / 1e6});
    }
    phase = "the end of the step";
    program.exchange.end_step();
    if (options.tensor) options.tensor->check_layers();
  } catch (const std::exception& error) {
    fail(phase, user_message(error));
  }
}

double Pipeline::step(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& targets,
                      const PipelineLoss& loss, const PipelineStepOptions& options) {
  PipelineState& state = *state_;
  TORCH_CHECK(state.group, state.failure);
  const PreparedBatch batch = prepare_batch(inputs, targets, options, state);
  std::optional<StageRandom> random;
  if (state.parts.model.training()) random.emplace(state.options.seed, state.steps, state.device);
  StageStep step{.batch = &batch.micro_batches,
                 .loss = &loss,
                 .weights = batch.weights,
                 .loss_factor = options.loss_factor * batch.factor,
                 .grad_scale = options.grad_scale,
                 .random = random ? &*random : nullptr,
                 .forward_call = &state.options.forward_call,
                 .backward_call = &state.options.backward_call,
                 .tensor = state.options.tensor ? &*state.options.tensor : nullptr,
                 .divide_backward = state.options.divide_backward,
                 .check_finite = state.options.check_finite};
  const ShardedExchanges exchanges(state);
  TiedGradients tied(state.tied);
  state.run(*state.training, std::move(step), inputs);
  double mean = 0;
  try {
    tied.add_over_ranks();
    mean = from_last(state.training->runner.loss(), state) * batch.factor;
    const std::optional<comm::Group>& data = state.options.data;
    if (data) mean = sum_over_replicas(mean, *data, state.device) / data->size();
    if (options.average_gradients) exchanges.average(data);
  } catch (const std::exception& error) {
    state.fail("the end of the step", user_message(error));
  }
  ++state.steps;
  return mean;
}

at::Tensor Pipeline::forward(const std::vector<at::Tensor>& inputs) {
  PipelineState& state = *state_;
  TORCH_CHECK(state.group, state.failure);
  const MicroBatches batch = divided_batch(inputs, {}, state.options);
  StageStep step{.batch = &batch,
                 .forward_call = &state.options.forward_call,
                 .tensor = state.options.tensor ? &*state.options.tensor : nullptr,
                 .check_finite = state.options.check_finite};
  state.run(*state.evaluation, std::move(step), inputs);
  return state.is_last() ? at::cat(state.evaluation->runner.outputs()) : at::Tensor();
}

const std::vector<at::Tensor>& Pipeline::parameters() const {
  return state_->tensors.own();
}

const Model& Pipeline::model() const {
  return state_->parts.model;
}

const PipelineSchedule& Pipeline::schedule() const {
  return state_->options.schedule;
}

int64_t Pipeline::steps() const {
  return state_->steps;
}

void Pipeline::set_steps(int64_t steps) {
  TORCH_CHECK_VALUE(steps >= 0, "set_steps: expected at least 0, got ", steps, ".");
  state_->steps = steps;
}

void Pipeline::forget_sizes() {
  for (auto* program : {&state_->training, &state_->evaluation}) {
    if (*program) (*program)->input_sizes.clear();
  }
}

std::vector<comm::Shard> Pipeline::shards() const {
  return state_->tensors.shards();
}

std::vector<comm::Shard> Pipeline::state_shards(const torch::optim::Optimizer& optimizer) const {
  TORCH_CHECK(state_->group, state_->failure);
  return state_->tensors.state_shards(optimizer, *state_->group);
}

std::vector<comm::Shard> Pipeline::wanted_shards(const torch::optim::Optimizer& optimizer,
                                                 const std::vector<SavedTensor>& saved) const {
  TORCH_CHECK(state_->group, state_->failure);
  return state_->tensors.wanted_shards(optimizer, saved, *state_->group);
}

void Pipeline::load_shards(torch::optim::Optimizer& optimizer, const std::vector<comm::Shard>& filled) const {
  TORCH_CHECK(state_->group, state_->failure);
  state_->tensors.load_shards(optimizer, filled, *state_->group);
}

PipelineTimeline Pipeline::timeline() const {
  const PipelineState& state = *state_;
  TORCH_CHECK_VALUE(state.options.measure, "timeline: set PipelineOptions::measure before the step.");
  TORCH_CHECK(state.group, state.failure);
  std::ostringstream own;
  own.precision(17);
  for (const auto& [action, start_s, duration_s] : state.measured)
    own << static_cast<int>(action.work) << ' ' << action.stage << ' ' << action.micro_batch << ' ' << start_s << ' '
        << duration_s << ' ';
  PipelineTimeline timeline;
  double first = std::numeric_limits<double>::infinity();
  for (const std::string& text : comm::all_gather_strings(own.str(), *state.group)) {
    auto& actions = timeline.ranks.emplace_back();
    std::istringstream in(text);
    int work = 0;
    TimedAction timed;
    while (in >> work >> timed.action.stage >> timed.action.micro_batch >> timed.start_s >> timed.duration_s) {
      timed.action.work = static_cast<PipelineWork>(work);
      first = std::min(first, timed.start_s);
      actions.push_back(timed);
    }
  }
  for (auto& actions : timeline.ranks) {
    for (TimedAction& timed : actions) timed.start_s -= first;
  }
  return timeline;
}

std::string Pipeline::describe() const {
  const PipelineState& state = *state_;
  int64_t own = 0;
  for (const at::Tensor& parameter : state.tensors.own()) own += static_cast<int64_t>(parameter.nbytes());
  return c10::str(state.options.schedule.stages(), " stages on ", state.options.schedule.ranks.size(), " ranks, ",
                  state.options.schedule.name, " with ", state.options.schedule.micro_batches, " micro-batches, ",
                  format_bytes(static_cast<double>(own)), " of parameters on this rank");
}

Pipeline pipeline(const ModelParts& parts, const comm::Group& group, const PipelineOptions& options) {
  PipelineOptions checked = options;
  check_schedule(checked.schedule);
  TORCH_CHECK_VALUE(static_cast<int>(checked.schedule.ranks.size()) == group.size(), "pipeline: schedule ",
                    checked.schedule.name, " is for ", checked.schedule.ranks.size(), " ranks, but group ",
                    group.name(), " has ", group.size(), ".");
  if (checked.first_parts.empty())
    checked.first_parts = even_stages(static_cast<int>(parts.parts.size()), checked.schedule.stages());
  TORCH_CHECK_VALUE(static_cast<int>(checked.first_parts.size()) == checked.schedule.stages(), "pipeline: got ",
                    checked.first_parts.size(), " stages, but schedule ", checked.schedule.name, " has ",
                    checked.schedule.stages(), ".");
  check_stages(parts, checked.first_parts);
  if (checked.data && checked.data->size() == 1) checked.data.reset();
  if (checked.context && checked.context->size() == 1) checked.context.reset();
  if (checked.tensor && checked.tensor->group().size() == 1) checked.tensor.reset();
  check_divided_layers(parts, checked.tensor);
  check_same_pipelines(parts, group, checked);
  const comm::Group own = comm::duplicate(group, "pipeline");
  if (checked.data) checked.seed = rank_seed(checked.seed, checked.data->rank());
  checked.data = gradient_ranks(checked);
  if (checked.broadcast && group.size() > 1) broadcast_tensors(parts.model.state_dict(), 0, own);
  HeldTensors tensors(parts, checked.schedule.stage_ranks, checked.first_parts, group.rank(), checked.tensor);
  tensors.free_others();
  if (checked.data) start_replicas(tensors.named(), *checked.data, checked.broadcast);
  return Pipeline(std::make_shared<Pipeline::State>(parts, own, std::move(checked), std::move(tensors)));
}

}  // namespace bellows::parallel
