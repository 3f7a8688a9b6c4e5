#include "bellows/train/step/train_loop.h"

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <c10/util/irange.h>

#include <chrono>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "bellows/checkpoint/rng.h"
#include "bellows/core/device.h"
#include "bellows/core/error.h"
#include "bellows/core/grad_mode.h"
#include "bellows/core/sharded_gradients.h"
#include "bellows/inspect/trace.h"
#include "bellows/optim/state/state.h"
#include "bellows/system/allocator_reuse.h"
#include "bellows/train/loss.h"
#include "bellows/train/step/batch_placement.h"
#include "bellows/train/step/failure_localization.h"
#include "bellows/train/step/operator_rules.h"
#include "bellows/train/step/pipeline_ranks.h"
#include "bellows/train/step/state_copy.h"

namespace bellows::train {

namespace {

using Clock = std::chrono::steady_clock;

/// Adds the time since construction or the last call.
class PhaseClock {
 public:
  void add_to(double& seconds) {
    const auto now = Clock::now();
    seconds += std::chrono::duration<double>(now - begin_).count();
    begin_ = now;
  }

 private:
  Clock::time_point begin_ = Clock::now();
};

/// Resizes images to `size` if that is smaller. Shapes: [N, C, H, W]
data::Batch resized(data::Batch batch, int64_t size) {
  if (size == 0) return batch;
  NamedTensors tensors = batch.tensors();
  for (auto& [name, tensor] : tensors) {
    if (tensor.dim() == 4) tensor = at::_upsample_bilinear2d_aa(tensor, {size, size}, /*align_corners=*/false);
  }
  return data::Batch(std::move(tensors), batch.ids(), batch.place());
}

// ---- content of checkpoints

/// Tensors whose names start with `prefix`, without the prefix.
NamedTensors below(const NamedTensors& tensors, const std::string& prefix) {
  NamedTensors result;
  for (const auto& [name, value] : tensors) {
    if (name.starts_with(prefix)) result.emplace_back(name.substr(prefix.size()), value);
  }
  return result;
}

constexpr const char* averaged_prefix = "average.module.";
constexpr const char* metrics_prefix = "train_metrics.";
constexpr const char* alternate_prefix = "alternate.";

std::string optimizer_prefix(size_t index) {
  return index == 0 ? "" : std::to_string(index) + "/";
}

}  // namespace

TrainLoop::TrainLoop(Job job)
    : job_(std::move(job)),
      alternate_(make_alternate(job_)),
      frozen_(std::in_place, alternate_parameters()),
      ranks_(job_),
      device_(parse_device(job_.recipe.device)),
      reproducible_(job_, ranks_),
      replicas_(job_),
      growth_(job_.recipe, job_.train.channels_last(job_.recipe.channels_last), batches_per_step()),
      loader_(growth_.data(0).loader()),
      policy_(precision_policy(job_.recipe)),
      fast_random_(job_.recipe.fast_random),
      activations_(job_.recipe, job_.model, ranks_.data_rank(),
                   [this](models::RunBlock run) { return ranks_.divided_blocks(std::move(run)); }),
      quantized_(job_, ranks_.size()),
      compiled_(job_.recipe),
      update_(job_.recipe),
      rates_(job_.recipe, growth_, job_.optimizers),
      metrics_(job_.recipe.train_metrics) {
  TORCH_CHECK_VALUE(!job_.optimizers.empty() && job_.loss, "TrainLoop: expected an optimizer and a loss, got none.");
  if (job_.recipe.allocator_reuse) keep_freed_memory();
  if (job_.recipe.sample_stats) sample_stats_.emplace(job_.train.source()->id_bound());
  if (job_.recipe.ema_decay > 0) {
    average_.emplace(ranks_.local_model(),
                     optim::AveragingOptions{.weight = optim::ema_weight(job_.recipe.ema_decay, true),
                                             .buffers = optim::AverageBuffers::average});
  }
  take_gradients();
  if (!job_.model.training()) job_.model.train();  // does not change modules that the caller froze
  frozen_.reset();
}

std::unique_ptr<TrainLoop> TrainLoop::make_alternate(const Job& job) {
  if (!job.alternate) return nullptr;
  check_alternate(job);
  Job other = *job.alternate;
  other.ranks = job.ranks;
  const FrozenParameters frozen(parameters_of(job.optimizers));
  return std::make_unique<TrainLoop>(std::move(other));
}

std::vector<at::Tensor> TrainLoop::alternate_parameters() const {
  return alternate_ ? parameters_of(alternate_->job_.optimizers) : std::vector<at::Tensor>();
}

void TrainLoop::step_alternate() {
  if (!alternate_) return;
  const FrozenParameters frozen(parameters_of(job_.optimizers));
  alternate_->run_steps(1);
}

/// Sets up how gradients are handled when they are computed.
void TrainLoop::take_gradients() {
  const Recipe& recipe = job_.recipe;
  TORCH_CHECK_VALUE(recipe.gradient_accumulation_dtype == "auto" || !ranks_.group(),
                    "train: gradient_accumulation_dtype works only with one process, because several ranks exchange "
                    "their gradients, got ",
                    ranks_.size(), " ranks.");
  if (recipe.gradient_accumulation_dtype != "auto")
    sums_.emplace(parameters_of(job_.optimizers),
                  optim::AccumulatorOptions{recipe.gradient_accumulation_dtype == "fp32" ? at::kFloat : at::kBFloat16});
  if (!recipe.optimizer_in_backward) return;
  for (const auto& optimizer : job_.optimizers) stepping_.push_back(optim::step_in_backward(*optimizer));
}

int64_t TrainLoop::batches_per_step() const {
  return job_.recipe.gradient_accumulation_steps * reproducible_.batches_per_batch();
}

bool TrainLoop::step(bool stop) {
  before_step_ = {epoch_, batch_};
  std::optional<data::Batch> first = next_batch();
  if (!first) return false;
  rates_.set(step_, first->epoch());
  between_steps_ = false;
  step_alternate();
  const FrozenParameters frozen(alternate_parameters());
  PhaseClock deferred;
  with_operator_rules(job_.recipe, [&] {
    compiled_.step([&] {
      take_step(std::move(*first), stop);
      deferred = {};
    });
  });
  deferred.add_to(phases_.update);
  losses_.push_back(last_loss_);
  samples_ += last_batch_size_;
  ++step_;
  between_steps_ = true;
  updating_ = false;
  return true;
}

void TrainLoop::take_step(data::Batch first, bool stop) {
  std::optional<data::Batch> batch = std::move(first);
  const int64_t epoch = batch->epoch();
  for (const auto& optimizer : job_.optimizers) optimizer->zero_grad();
  if (job_.recipe.on_nan == "skip" || job_.elastic) keep_buffers();
  if (job_.elastic) kept_counts_ = metrics_.state(nullptr);
  const int64_t batches = batches_per_step();
  const bool single = batches == 1 || epoch_ != epoch;
  const bool alone = single && !reproducible_.on() && ranks_.has_equal_share(*batch, growth_.batch_size(epoch));
  GroupMean mean(ranks_.group(), std::max<int64_t>(growth_.batch_size(epoch) / ranks_.losses(), 1), stop,
                 (policy_.loss_scaling && policy_.low_weights && ranks_.group()) || !stepping_.empty(),
                 ranks_.size() / ranks_.losses());
  if (job_.elastic && job_.elastic->changed()) mean.request_rejoin();
  last_ids_.clear();
  for (int64_t i = 1; batch; ++i) {
    const bool last = i == batches || epoch_ != epoch;
    if (replicas_.on()) {
      run_replicas(*batch, i - 1, mean, alone);
    } else if (ranks_.pipeline()) {
      run_stages(*batch, i - 1, mean, last);
    } else {
      forward_backward(*batch, i - 1, mean, alone, last);
    }
    batch = last ? std::nullopt : next_batch();
  }
  reproducible_.end_step();
  quantized_.exchange(ranks_.group(), step_);
  last_loss_ = mean.loss();
  stop_ = mean.stop();
  rejoin_ = mean.rejoin();
  last_batch_size_ = mean.samples();
  if (job_.recipe.on_nan == "skip") put_back_buffers(last_loss_);
  PhaseClock clock;
  if (job_.elastic && ranks_.shards_state()) keep_state();
  const inspect::TraceScope scope("optimizer");
  if (stepping_.empty()) update_.step(job_.optimizers, mean.divisor());
  if (average_) average_->update_parameters();
  clock.add_to(phases_.update);
}

void TrainLoop::forward_backward(const data::Batch& batch, int64_t number, GroupMean& mean, bool alone, bool last) {
  PhaseClock clock;
  std::optional<StepOutput> output;
  const QuantizedTraining::Guard quantized(quantized_, step_);   // also for recomputation in backward
  const std::shared_ptr<void> divided = ranks_.forward_scope();  // likewise
  reproducible_.begin_batch(step_, number);
  ranks_.before_forward(last || reproducible_.on(), ranks_.all_have_samples(batch, growth_.batch_size(batch.epoch())));
  {
    const inspect::TraceScope scope("forward");
    const auto precision = make_precision_guard(policy_, device_);
    const Activations::Forward forward(activations_, step_, number);
    compiled_.forward([&] {
      output = batch.size() > 0 ? job_.loss(batch) : StepOutput::sum(ranks_.loss_of_nothing(), at::scalar_tensor(0));
    });
  }
  const at::Tensor loss = mean.weigh(*output, batch.size(), alone);
  clock.add_to(phases_.forward);
  check_finite(loss, batch);
  // In a compiled step, an exchange runs the pending operators. After backward, they are those of the whole step.
  const bool exchanges_early = last && !compiled_.has_whole_steps();
  if (exchanges_early) mean.exchange();
  ranks_.before_backward(loss);
  {
    const inspect::TraceScope scope("backward");
    update_.scaled(loss).backward();
  }
  ranks_.after_backward();
  reproducible_.end_batch();
  if (last && !exchanges_early) mean.exchange();
  check_gradient(batch);
  clock.add_to(phases_.backward);
  note_output(batch, *output);
}

void TrainLoop::run_replicas(const data::Batch& batch, int64_t number, GroupMean& mean, bool alone) {
  PhaseClock clock;
  const at::Tensor one = at::scalar_tensor(1, at::TensorOptions(device_).dtype(at::kFloat));
  std::optional<StepOutput> output;
  {
    const inspect::TraceScope scope("replicas");
    const auto precision = make_precision_guard(policy_, device_);
    output = replicas_.forward_backward(
        batch, mean,
        {.activations = activations_, .step = step_, .batch = number, .alone = alone, .gradient = update_.scaled(one)});
  }
  check_finite(output->loss, batch);
  check_gradient(batch);
  clock.add_to(phases_.backward);
  note_output(batch, *output);
}

void TrainLoop::run_stages(const data::Batch& batch, int64_t number, GroupMean& mean, bool last) {
  PhaseClock clock;
  const at::Tensor one = at::scalar_tensor(1, at::TensorOptions(device_).dtype(at::kFloat));
  const inspect::TraceScope scope("pipeline");
  if (!job_.recipe.reshard_after_forward) ranks_.gather_parameters();  // otherwise for each micro-batch
  const auto [output, samples] =
      ranks_.pipeline()->forward_backward(batch, {.number = step_ * batches_per_step() + number,
                                                  .unit = mean.unit_for(1).item<double>(),
                                                  .grad_scale = update_.scaled(one),
                                                  .last = last});
  mean.weigh(output, samples, /*alone=*/false);
  check_finite(output.loss, batch);
  if (last) mean.exchange();
  check_gradient(batch);
  clock.add_to(phases_.backward);
  note_output(batch, output);
}

void TrainLoop::note_output(const data::Batch& batch, const StepOutput& output) {
  if (batch.size() > 0 && batch.contains("label"))
    metrics_.update(output.loss.detach(), output.predictions, batch["label"]);
  if (sample_stats_) note_samples(batch, output.predictions);
  last_ids_.insert(last_ids_.end(), batch.ids().begin(), batch.ids().end());
}

void TrainLoop::note_samples(const data::Batch& batch, const at::Tensor& predictions) {
  TORCH_CHECK_VALUE(predictions.defined() && batch.contains("label"),
                    "TrainLoop: sample_stats needs labels and a loss function that returns predictions [N, C].");
  sample_stats_->update(batch.ids(), predictions, batch["label"]);
}

void TrainLoop::run_steps(int64_t n) {
  for (int64_t i = 0; i < n; i += step() ? 1 : 0) {
  }
}

std::optional<data::Batch> TrainLoop::next_batch() {
  const inspect::TraceScope scope("load");
  const eager_guard guard;  // loaders read and write memory directly
  PhaseClock clock;
  if (!started_) {
    if (loader_.batch_size() != growth_.batch_size(epoch_)) loader_ = growth_.data(epoch_).loader();
    loader_.start(epoch_, batch_);
    delivered_ = batch_ > 0;
    started_ = true;
  }
  std::optional<data::Batch> batch = loader_.next();
  TORCH_CHECK_VALUE(batch || delivered_, "TrainLoop: no sample of epoch ", epoch_ + 1, " could be used (",
                    loader_.size(), " in the dataset). Check the data, or set bad_samples: fail to see the reason.");
  const int64_t size = growth_.image_size(epoch_);
  delivered_ = true;
  if (batch) batch_ = batch->index() + 1;
  if (!batch || batch_ >= loader_.batches_per_epoch()) {
    // The next epoch starts with the next step, so that nothing is loaded during an evaluation.
    skipped_ += loader_.skipped();
    ++epoch_;
    batch_ = 0;
    started_ = false;
  }
  if (batch) batch = resized(placed(std::move(*batch), job_.recipe, device_), size);
  clock.add_to(phases_.load);
  return batch;
}

void TrainLoop::replay(const data::Batch& batch) {
  stepping_.clear();  // this backward pass must not update weights
  const QuantizedTraining::Guard quantized(quantized_, step_);
  const auto precision = make_precision_guard(policy_, device_);
  job_.loss(batch).loss.backward();
}

/// With sharded parameters, or a divided model or sequences, the other ranks would have to take part in another forward
/// pass, and with updates in backward in another backward pass. A rank can still check its batch and its part of the
/// model.
std::string TrainLoop::cause_of_bad_value(const data::Batch& batch) {
  const bool divided = ranks_.divides_model() || ranks_.divides_sequences();
  const bool updates = ranks_.group() && !stepping_.empty();
  if (ranks_.shards_parameters())
    return c10::str("With data_parallel ddp, zero1 or zero2",
                    divided ? " and without mesh axes that divide the model or sequences" : "",
                    ", the error also reports the cause.");
  if (const std::string words = divided || updates ? bad_input_or_weight(job_, batch) : ""; !words.empty())
    return c10::str("On rank ", ranks_.rank(), ": ", words);
  if (ranks_.divides_model()) return "Without the mesh axes tensor and pipeline, the error also reports the cause.";
  if (ranks_.divides_sequences()) return "Without the mesh axis context, the error also reports the cause.";
  if (updates) return "Without optimizer_in_backward, the error also reports the cause.";
  return blame_bad_value(job_, batch, [&] { replay(batch); });
}

/// Whether losses and gradients are checked immediately. On an accelerator the host would wait, and a compiled step
/// would be split.
bool TrainLoop::looks_at_once() const {
  return device_.is_cpu() && job_.recipe.on_nan == "stop" && !compiled_.has_whole_steps();
}

void TrainLoop::check_finite(const at::Tensor& loss, const data::Batch& batch) {
  if (!looks_at_once()) return;
  const auto value = loss.item<double>();
  if (std::isfinite(value)) return;
  TORCH_CHECK(false, "train: the loss became ", std::isnan(value) ? "NaN" : "infinite", " at step ", step_ + 1,
              " (epoch ", batch.epoch() + 1, ", batch ", batch.index(), ", learning rate ",
              optim::get_lr(*job_.optimizers.front()), ", samples ", id_list(batch.ids()), "). ",
              cause_of_bad_value(batch),
              " Existing checkpoints were written before this step. To skip such steps, set on_nan: skip.");
}

/// Bad gradients propagate to the first layers, so checking one small gradient there is sufficient and cheap.
bool TrainLoop::has_bad_gradient() const {
  constexpr int64_t cheap = 1 << 13;
  const bool stepped = !stepping_.empty();  // the gradient is freed, but a bad gradient also affects its weight
  for (const at::Tensor& parameter : job_.optimizers.front()->param_groups().front().params()) {
    const bool trained = parameter.requires_grad() || gradient_part(parameter).owner;  // shards require no gradient
    const at::Tensor looked_at = !stepped ? parameter.grad() : trained ? parameter : at::Tensor();
    if (!looked_at.defined() || looked_at.is_sparse() || looked_at.numel() > cheap) continue;
    return !std::isfinite(at::sum(looked_at.detach(), at::kDouble).item<double>());
  }
  return false;
}

void TrainLoop::check_gradient(const data::Batch& batch) {
  if (!looks_at_once() || policy_.loss_scaling || !ranks_.any_stage(has_bad_gradient())) return;
  const bool stepped = !stepping_.empty();
  TORCH_CHECK(false, "train: a gradient became NaN or infinite at step ", step_ + 1, " (epoch ", batch.epoch() + 1,
              ", batch ", batch.index(), ", samples ", id_list(batch.ids()), "). ",
              stepped ? std::string("The weights already contain it (optimizer_in_backward). Without "
                                    "optimizer_in_backward, the error also reports the cause.")
                      : cause_of_bad_value(batch),
              " Existing checkpoints were written before this step.",
              stepped ? "" : " To skip such steps, set on_nan: skip.");
}

// A forward pass with bad values corrupts running statistics, which a skipped step does not restore.
void TrainLoop::keep_buffers() {
  kept_buffers_.clear();
  for (const at::Tensor& buffer : step_buffers()) kept_buffers_.push_back(buffer.clone());
}

std::vector<at::Tensor> TrainLoop::step_buffers() const {
  std::vector<at::Tensor> buffers = job_.model.buffers();
  const std::vector<at::Tensor> ranges = quantized_.buffers();
  buffers.insert(buffers.end(), ranges.begin(), ranges.end());
  return buffers;
}

Job TrainLoop::take_job() {
  rates_.set_base_rates();
  stepping_.clear();  // refers to the optimizers
  ranks_.unshard(job_);
  return std::move(job_);
}

/// All ranks have exchanged their gradients. Therefore, each of them has finished the step before this one.
void TrainLoop::keep_state() {
  const eager_guard guard;
  checkpoint::State state = own_state();
  std::tie(state.epoch, state.batch) = before_step_;
  state.batch /= reproducible_.batches_per_batch();
  std::map<std::string, at::Tensor> buffers;  // before forward
  size_t index = 0;
  for (const auto& [name, buffer] : job_.model.named_buffers()) buffers[name] = kept_buffers_[index++];
  for (auto& [name, tensor] : state.model) {
    if (const auto found = buffers.find(name); found != buffers.end()) tensor = found->second;
  }
  std::erase_if(state.extra, [](const auto& item) { return item.first.starts_with(metrics_prefix); });
  for (const auto& [name, count] : kept_counts_) state.extra.emplace_back(metrics_prefix + name, count);
  state.rng.clear();
  if (!before_update_) before_update_.emplace();
  copy_state(state, *before_update_);
  updating_ = true;
}

void TrainLoop::undo_step() {
  if (between_steps_) return;
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> buffers = step_buffers();
  for (const auto i : c10::irange(kept_buffers_.size())) buffers[i].copy_(kept_buffers_[i]);
  metrics_ = TrainMetrics(job_.recipe.train_metrics);
  metrics_.restore(kept_counts_);
  std::tie(epoch_, batch_) = before_step_;
  started_ = false;
  between_steps_ = true;
}

void TrainLoop::put_back_buffers(const at::Tensor& loss) {
  const c10::NoGradGuard no_grad;
  const at::Tensor good = at::isfinite(loss);
  std::vector<at::Tensor> buffers = step_buffers();
  for (const auto i : c10::irange(buffers.size())) buffers[i].copy_(at::where(good, buffers[i], kept_buffers_[i]));
}

std::vector<double> TrainLoop::take_losses() {
  if (alternate_) alternate_->take_losses();  // throws if one of them is NaN
  if (losses_.empty()) return {};
  const at::Tensor values = at::stack(losses_).to(at::kCPU, at::kDouble);
  const int64_t first = step_ - static_cast<int64_t>(losses_.size());
  losses_.clear();
  std::vector<double> result(values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel());
  if (job_.recipe.on_nan == "skip") {
    std::erase_if(result, [](double loss) { return !std::isfinite(loss); });
    return result;
  }
  for (const auto i : c10::irange(result.size())) {
    TORCH_CHECK(
        std::isfinite(result[i]), "train: the loss became ", std::isnan(result[i]) ? "NaN" : "infinite", " at step ",
        first + static_cast<int64_t>(i) + 1, " (learning rate ", optim::get_lr(*job_.optimizers.front()),
        "). Try a smaller lr, a warm-up, or precision fp32. Existing checkpoints were written before this step.");
  }
  return result;
}

Evaluation TrainLoop::evaluate() {
  TORCH_CHECK_VALUE(job_.eval, "TrainLoop::evaluate: there is no held-out data. Set eval_split or eval_data.");
  if (!eval_loader_) eval_loader_ = job_.eval->channels_last(job_.recipe.channels_last).loader();
  std::optional<optim::AveragedWeights> averaged;
  if (average_ && average_->n_averaged() > 0) {
    ranks_.release_parameters();  // gathered in advance, with the values before the average
    averaged.emplace(*average_);
  }
  ranks_.before_evaluation();
  ranks_.gather_parameters();  // ranks may have different numbers of batches
  const QuantizedTraining::Guard quantized(quantized_, step_ - 1);
  const std::optional<OutputRank> output_rank = ranks_.output_rank();
  const Evaluation result = train::evaluate(ranks_.evaluated_model(), *eval_loader_, job_.recipe, job_.task,
                                            ranks_.data_group(), &compiled_, output_rank ? &*output_rank : nullptr);
  ranks_.release_parameters();
  rates_.note_evaluation(result.loss);
  if (alternate_) alternate_->rates_.note_evaluation(result.loss);
  return result;
}

std::vector<std::shared_ptr<torch::optim::Optimizer>> TrainLoop::all_optimizers() const {
  auto result = job_.optimizers;
  if (alternate_) result.insert(result.end(), alternate_->job_.optimizers.begin(), alternate_->job_.optimizers.end());
  return result;
}

NamedTensors TrainLoop::optimizer_state() const {
  NamedTensors result;
  const auto optimizers = all_optimizers();
  for (const auto i : c10::irange(optimizers.size())) {
    for (const auto& [name, value] : optim::state_dict(*optimizers[i]))
      result.emplace_back(optimizer_prefix(i) + name, value);
  }
  return result;
}

void TrainLoop::restore_optimizers(const NamedTensors& state, bool own_options, bool own_part) {
  const auto optimizers = all_optimizers();
  for (const auto i : c10::irange(optimizers.size())) {
    NamedTensors own = below(state, optimizer_prefix(i));
    if (i == 0) std::erase_if(own, [](const auto& item) { return item.first.find('/') != std::string::npos; });
    std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
    for (const auto& group : optimizers[i]->param_groups()) options.push_back(group.options().clone());
    own_part ? Ranks::load_own_state(*optimizers[i], own) : ranks_.load_complete_state(*optimizers[i], own);
    for (const auto g : c10::irange(own_options ? options.size() : 0)) {
      optimizers[i]->param_groups()[g].set_options(std::move(options[g]));
    }
  }
}

NamedTensors TrainLoop::extra_state(const comm::Group* ranks) const {
  NamedTensors extra = {{"samples", at::scalar_tensor(samples_, at::kLong)},
                        {"skipped", at::scalar_tensor(skipped_samples(), at::kLong)}};
  const auto append = [&extra](const std::string& prefix, const NamedTensors& part) {
    for (const auto& [name, value] : part) extra.emplace_back(prefix + name, value);
  };
  append("", update_.state());
  append(metrics_prefix, metrics_.state(ranks));
  append("rates.", rates_.state());
  append("exchange.", ranks_.state());
  append(quantized_training_prefix, quantized_.state());
  if (sample_stats_) append("sample_stats.", sample_stats_->state());
  append(alternate_prefix, alternate_ ? alternate_->alternate_state() : NamedTensors());
  return extra;
}

/// The progress of a loop whose model and optimizers are saved by another loop.
NamedTensors TrainLoop::alternate_state() const {
  const auto number = [](int64_t value) { return at::scalar_tensor(value, at::kLong); };
  NamedTensors state = {{"samples", number(samples_)},
                        {"skipped", number(skipped_samples())},
                        {"step", number(step_)},
                        {"epoch", number(epoch_)},
                        {"batch", number(batch_)}};
  for (const auto& [name, value] : update_.state()) state.emplace_back(name, value);
  for (const auto& [name, value] : rates_.state()) state.emplace_back("rates." + name, value);
  for (const auto& [name, value] : ranks_.state()) state.emplace_back("exchange." + name, value);
  return state;
}

/// Restores the counts of samples, the loss scale and the learning rates. The next step starts the loader again.
void TrainLoop::restore_progress(const NamedTensors& extra, bool own_options) {
  for (const auto& [name, value] : extra) {
    if (name == "samples") samples_ = value.item<int64_t>();
    if (name == "skipped") skipped_ = value.item<int64_t>();
  }
  if (!own_options || !below(extra, "scaler.").empty()) update_.restore(extra);
  rates_.restore(below(extra, "rates."));
  started_ = false;
  losses_.clear();
  last_loss_ = at::Tensor();
}

/// Restores the exchange of this loop and the progress of the alternate one. The buckets of each exchange contain the
/// parameters that its loop trains.
void TrainLoop::restore_exchange(const NamedTensors& extra, bool own_options) {
  if (!own_options) {
    const FrozenParameters frozen(alternate_parameters());
    ranks_.restore(below(extra, "exchange."));
  }
  if (!alternate_) return;
  const FrozenParameters frozen(parameters_of(job_.optimizers));
  alternate_->restore_alternate(below(extra, alternate_prefix), own_options);
}

void TrainLoop::restore_alternate(const NamedTensors& state, bool own_options) {
  restore_progress(state, own_options);
  for (const auto& [name, value] : state) {
    if (name == "step") step_ = value.item<int64_t>();
    if (name == "epoch") epoch_ = value.item<int64_t>();
    if (name == "batch") batch_ = value.item<int64_t>();
  }
  own_options ? rates_.forget() : ranks_.restore(below(state, "exchange."));
}

checkpoint::State TrainLoop::own_state() const {
  checkpoint::State state{.model = ranks_.local_model().state_dict(),
                          .rng = checkpoint::rng_state(),
                          .extra = extra_state(nullptr),
                          .step = step_,
                          .epoch = epoch_,
                          .batch = batch_ / reproducible_.batches_per_batch(),
                          .recipe = job_.recipe.to_yaml()};
  for (const auto& [name, value] : average_ ? average_->state_dict() : NamedTensors())
    state.extra.emplace_back("average." + name, value);
  const auto optimizers = all_optimizers();
  for (const auto i : c10::irange(optimizers.size())) {
    for (const auto& [name, value] : Ranks::own_state(*optimizers[i]))
      state.optimizer.emplace_back(optimizer_prefix(i) + name, value);
  }
  return state;
}

checkpoint::State TrainLoop::state() const {
  NamedTensors extra = extra_state(nullptr);
  for (const auto& [name, value] : average_ ? average_->state_dict() : NamedTensors())
    extra.emplace_back("average." + name, value);
  return {.model = job_.model.state_dict(),
          .optimizer = optimizer_state(),
          .rng = checkpoint::rng_state(),
          .extra = std::move(extra),
          .step = step_,
          .epoch = epoch_,
          .batch = batch_ / reproducible_.batches_per_batch(),
          .recipe = job_.recipe.to_yaml()};
}

checkpoint::Parts TrainLoop::average_parts() const {
  if (!average_) return {};
  checkpoint::Parts parts = ranks_.parts_of(average_->averaged());
  for (checkpoint::Part& part : parts) part.name = averaged_prefix + part.name;
  for (checkpoint::Part& part :
       checkpoint::whole_parts({{"average.n_averaged", average_->state_dict().front().second}}))
    parts.push_back(std::move(part));
  return parts;
}

void TrainLoop::restore_average(const NamedTensors& extra) {
  NamedTensors state;
  for (auto& [name, value] : ranks_.local_parts(below(extra, averaged_prefix)))
    state.emplace_back("module." + name, value);
  for (const auto& [name, value] : extra) {
    if (name == "average.n_averaged") state.emplace_back("n_averaged", value);
  }
  average_->load_state_dict(state);
}

checkpoint::ShardedState TrainLoop::sharded_state() const {
  checkpoint::ShardedState state{.model = ranks_.parts_of(ranks_.local_model().state_dict()),
                                 .optimizer = {},
                                 .extra = checkpoint::whole_parts(extra_state(ranks_.data_group())),
                                 .rng = checkpoint::rng_state(),
                                 .step = step_,
                                 .epoch = epoch_,
                                 .batch = batch_ / reproducible_.batches_per_batch(),
                                 .recipe = job_.recipe.to_yaml()};
  for (checkpoint::Part& part : average_parts()) state.extra.push_back(std::move(part));
  const auto optimizers = all_optimizers();
  for (const auto i : c10::irange(optimizers.size())) {
    for (checkpoint::Part& part : ranks_.parts_of(*optimizers[i])) {
      part.name = optimizer_prefix(i) + part.name;
      state.optimizer.push_back(std::move(part));
    }
  }
  return state;
}

/// The weights in the state have the shapes of this rank's parts.
void TrainLoop::restore_own_weights(const checkpoint::State& state) {
  const c10::NoGradGuard no_grad;
  const std::map<std::string, at::Tensor> values(state.model.begin(), state.model.end());
  for (const auto& [name, tensor] : ranks_.local_model().state_dict()) at::Tensor(tensor).copy_(values.at(name));
  ranks_.release_parameters();
  if (average_) average_->load_state_dict(below(state.extra, "average."));
}

void TrainLoop::restore(const checkpoint::State& state, bool own_options, bool own) {
  const bool own_part = own && ranks_.shards_state();
  if (own_part) {
    restore_own_weights(state);
  } else {
    ranks_.load_complete_model(state.model);
  }
  restore_optimizers(state.optimizer, own_options, own_part);
  restore_progress(state.extra, own_options);
  const bool has_average = !below(state.extra, "average.").empty();
  metrics_ = TrainMetrics(job_.recipe.train_metrics);
  // Counts in a checkpoint include those of all ranks.
  if (ranks_.data_rank() == 0 || own) metrics_.restore(below(state.extra, metrics_prefix));
  const NamedTensors sample_stats = below(state.extra, "sample_stats.");
  if (sample_stats_ && !(own_options && sample_stats.empty())) sample_stats_->load_state(sample_stats);
  const NamedTensors quantized = below(state.extra, quantized_training_prefix);
  if (!own_options || !quantized.empty()) quantized_.restore(quantized);
  restore_exchange(state.extra, own_options);
  if (own_options || own_part) rates_.forget();  // parts of one step can have the rates of different steps
  if (average_ && !own_part && (!own_options || has_average)) restore_average(state.extra);
  step_ = state.step;
  epoch_ = state.epoch;
  batch_ = state.batch * reproducible_.batches_per_batch();
  // Empty on ranks that did not exist when the checkpoint was saved.
  if (!state.rng.empty()) checkpoint::set_rng_state(state.rng);
  if (!own) ranks_.align_generators(step_);
}

}  // namespace bellows::train
