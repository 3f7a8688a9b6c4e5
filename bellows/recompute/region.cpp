#include "bellows/recompute/region.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <optional>

#include "bellows/recompute/buffer_writes.h"
#include "bellows/recompute/saves.h"
#include "bellows/tap/deferral.h"
#include "bellows/tap/gradient_tap.h"

namespace bellows::recompute::detail {

namespace {

bool is_leaf_or_view_of_one(const at::Tensor& tensor) {
  const auto leaf = [](const at::TensorBase& t) { return t.is_leaf() && t.requires_grad(); };
  return leaf(tensor) || (tensor.is_view() && leaf(tensor._base()));
}

thread_local int second_runs = 0;  ///< number of second runs that are active on this thread

constexpr const char* why_it_differs =
    " The function must call the same operators with the same values in both runs. Possible causes are inputs or "
    "captured tensors that were modified between the runs, random numbers that do not come from the default generators "
    "of libtorch, and branches that depend on changing state.";

}  // namespace

SavedInput::SavedInput(const at::Tensor& input) {
  if (!input.defined()) return;
  TORCH_CHECK_VALUE(!input.is_inference(), "checkpoint: expected inputs that can be saved for backward, got a tensor ",
                    input.sizes(), " that was created in inference mode. Clone it outside of inference mode.");
  counter_ = input.unsafeGetTensorImpl()->version_counter();
  version_ = version_now();
  if (is_leaf_or_view_of_one(input)) {
    parameter_ = input;
  } else {
    const SaveScope scope(SaveKind::input);
    saved_ = torch::autograd::SavedVariable(input, false);
  }
}

at::Tensor SavedInput::get(size_t number) const {
  TORCH_CHECK_VALUE(!modified(), "checkpoint: input ", number,
                    " was modified in place after the function ran (version ", version_, ", now ", version_now(),
                    "). The second run would compute different results. Pass a clone to the function.");
  return parameter_.defined() ? parameter_ : saved_.unpack();
}

TensorFacts::TensorFacts(const at::Tensor& tensor, bool with_values)
    : sizes(tensor.sizes().begin(), tensor.sizes().end()), dtype(tensor.scalar_type()), device(tensor.device()) {
  if (!with_values) return;
  const PastRegions not_the_functions_operators;
  const at::Tensor flat = tensor.cpu().contiguous();
  tap::sync();
  const auto* bytes = static_cast<const unsigned char*>(flat.const_data_ptr());
  for (const size_t i : c10::irange(flat.nbytes())) values = (values ^ bytes[i]) * 0x100000001b3ULL;  // FNV-1a
}

bool TensorFacts::same_metadata(const TensorFacts& other) const {
  return sizes == other.sizes && dtype == other.dtype && device == other.device;
}

std::string TensorFacts::to_string() const {
  return c10::str(dtype, " ", c10::IntArrayRef(sizes), " on ", device);
}

at::Tensor Placeholder::unpack() {
  return region_->value_of(*this);
}

/// The client of the second run: assigns each saved tensor to the placeholder with the same number.
class SecondRun final : public tap::SavedTensorTap {
 public:
  SecondRun(Region& region, std::shared_ptr<BufferWrites> writes) : region_(region), writes_(std::move(writes)) {
    const auto wanted = [](const Region::Place& place) { return !place.holder.expired(); };
    const auto last = std::find_if(region.places_.rbegin(), region.places_.rend(), wanted);
    needed_ = static_cast<size_t>(region.places_.rend() - last);
  }

  std::shared_ptr<tap::PackedTensor> pack(const at::Tensor& tensor) override {
    if (PastRegions::active()) return nullptr;
    if (error_) std::rethrow_exception(error_);  // in case that the function catches the error and continues
    const size_t number = saved_++;
    if (number < region_.places_.size()) {
      const Region::Place& place = region_.places_[number];
      const TensorFacts facts(tensor, region_.options_.check_values);
      if (region_.options_.check_metadata && !facts.same_metadata(place.facts)) {
        fail(c10::str("checkpoint: tensor ", number, " of the ", region_.places_.size(),
                      " that the function saves for backward was ", place.facts.to_string(), ", and is ",
                      facts.to_string(), " in the second run, saved by ", writes_->operator_name(), "."));
      }
      if (region_.state_.random() && writes_->drew() && place.random_position != random_position()) {
        fail(
            c10::str("checkpoint: in its second run, the function drew different random numbers than in the first run, "
                     "before tensor ",
                     number, " of the ", region_.places_.size(), " that it saves for backward, saved by ",
                     writes_->operator_name(),
                     ". Another thread drew from the default generator of libtorch in between, which all threads "
                     "share. Use a separate generator on that thread, or run functions that draw random numbers, and "
                     "their backward passes, on one thread at a time."));
      }
      if (facts.values != place.facts.values && !writes_->wrote(tensor)) {
        fail(c10::str("checkpoint: tensor ", number, " of the ", region_.places_.size(),
                      " that the function saves for backward, ", facts.to_string(),
                      ", has different values in the second ", "run, saved by ", writes_->operator_name(), "."));
      }
      if (const auto holder = place.holder.lock()) {
        TORCH_CHECK(!has_no_memory(tensor), "checkpoint: backward needs a tensor that the second run did not compute.");
        holder->value_ = tensor;
      }
    }
    if (saved_ >= needed_ && region_.options_.early_stop) stop();
    return std::make_shared<Kept>(tensor);
  }

  bool packs_once() const override { return false; }

  /// Call it when the function has returned.
  void check_count() const {
    if (error_) std::rethrow_exception(error_);
    const size_t expected = region_.places_.size();
    const bool wrong = region_.options_.check_metadata ? saved_ != expected : saved_ < needed_;
    TORCH_CHECK_VALUE(!wrong, "checkpoint: the function saved ", expected,
                      " tensors for backward in the first run and ", saved_, " in the second run. Tensor ",
                      std::min(saved_, expected), " is the first one that differs.", why_it_differs);
  }

 private:
  /// A tensor in the graph of the second run, which is destroyed with it. A function that calls backward inside needs
  /// the values.
  struct Kept final : tap::PackedTensor {
    explicit Kept(at::Tensor tensor) : value(std::move(tensor)) {}
    at::Tensor unpack() override { return value; }
    at::Tensor value;
  };

  /// Stops before the saving operator computes. While a torch::autograd::Function saves tensors, it waits for the next
  /// operator: otherwise libtorch would leave the saved tensors in the Function's context. An output among them would
  /// then form a reference cycle with the graph, and both would leak.
  void stop() {
    if (writes_->operator_saves()) throw Enough{};
    writes_->stop_at_next_operator();
  }

  void fail(const std::string& what) {
    try {
      TORCH_CHECK_VALUE(false, what, why_it_differs);
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

  Region& region_;
  std::shared_ptr<BufferWrites> writes_;
  size_t needed_ = 0, saved_ = 0;
  std::exception_ptr error_;
};

Region::Region(const std::vector<at::Tensor>& inputs, Rerun rerun, const CheckpointOptions& options)
    : options_(options), rerun_(std::move(rerun)), state_(inputs, options.preserve_rng_state) {
  inputs_.reserve(inputs.size());
  input_of_.reserve(inputs.size());
  for (const size_t i : c10::irange(inputs.size())) {
    // An input that is passed twice is saved once, and is one tensor in the second run, too.
    const auto same = [&](const at::Tensor& other) { return inputs[i].defined() && other.is_same(inputs[i]); };
    const auto first = std::find_if(inputs.begin(), inputs.begin() + static_cast<ptrdiff_t>(i), same) - inputs.begin();
    if (static_cast<size_t>(first) == i) inputs_.emplace_back(inputs[i]);
    input_of_.push_back(static_cast<size_t>(first) == i ? inputs_.size() - 1 : input_of_[static_cast<size_t>(first)]);
  }
  choose_by(options, inputs);
}

/// Uses the policy or budget of this call, or else that of the surrounding guard.
void Region::choose_by(const CheckpointOptions& options, const std::vector<at::Tensor>& inputs) {
  if (options.budget) check_fraction("checkpoint", *options.budget);
  const bool own = options.policy || options.budget;
  auto plan = own || !current_budget() ? nullptr : current_budget()->plan;
  if (!own && !plan) return;
  std::vector<at::Tensor> held;
  for (const at::Tensor& input : inputs) {
    if (!input.defined() || !input.has_storage()) continue;
    storages_.try_emplace(input.storage().unsafeGetStorageImpl(), input.storage().getWeakStorageImpl());
    if (!tap::saved_tensor_tap_installed()) held.push_back(input);
  }
  selection_ = std::make_unique<Selection>(options, std::move(plan), second_runs == 0, held);
}

std::shared_ptr<tap::PackedTensor> Region::save(const at::Tensor& tensor) {
  auto holder = std::make_shared<Placeholder>(shared_from_this());
  const MutexLock lock(mutex_);
  const uint64_t position = options_.preserve_rng_state ? random_position() : 0;
  places_.push_back({holder, TensorFacts(tensor, options_.check_values), position});
  if (!selection_) return holder;
  const at::Storage& storage = tensor.storage();
  if (storages_.try_emplace(storage.unsafeGetStorageImpl(), storage.getWeakStorageImpl()).second)
    activation_bytes_ += static_cast<int64_t>(storage.nbytes());
  selection_->saved(tensor);
  return holder;
}

void Region::finish() {
  const MutexLock lock(mutex_);
  for (const size_t i : c10::irange(input_of_.size())) {
    const SavedInput& input = inputs_[input_of_[i]];
    TORCH_CHECK_VALUE(!input.modified(), "checkpoint: the function modified its input ", i, " in place (version ",
                      input.version(), ", now ", input.version_now(),
                      "), so a second run would not start with the same values. Clone the input in the function first, "
                      "or avoid in-place operators on it.");
  }
  state_.finish();
  if (selection_) selection_->finish(activation_bytes_);
  storages_.clear();
  finished_ = true;
}

at::Tensor Region::value_of(Placeholder& placeholder) {
  TORCH_CHECK_VALUE(!tap::unpacking_for_graph(),
                    "checkpoint: a second derivative (create_graph) through a checkpointed function is not supported. ",
                    "Call the function without checkpoint() where you need higher derivatives.");
  const MutexLock lock(mutex_);
  if (!placeholder.value_.defined()) run_again();
  TORCH_CHECK(placeholder.value_.defined(), "checkpoint: the second run did not save a tensor that backward needs.",
              why_it_differs);
  if (selection_) selection_->check_given();
  // Several nodes may have saved the tensor, and the backward of one may have overwritten it.
  TORCH_CHECK(
      placeholder.value_._version() == placeholder.version_,
      "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor ",
      placeholder.value_.sizes(), " of a checkpointed function, in its backward pass.");
  return placeholder.value_;
}

std::vector<at::Tensor> Region::inputs_again() const {
  std::vector<at::Tensor> distinct, result;
  distinct.reserve(inputs_.size());
  for (const size_t i : c10::irange(inputs_.size())) {
    const auto number = std::find(input_of_.begin(), input_of_.end(), i) - input_of_.begin();
    distinct.push_back(inputs_[i].get(static_cast<size_t>(number)));
  }
  result.reserve(input_of_.size());
  for (const size_t i : input_of_) result.push_back(distinct[i]);
  return result;
}

void Region::run_again() {
  TORCH_CHECK_VALUE(finished_ && !running_,
                    "checkpoint: backward was called inside a checkpointed function, on results of that function. ",
                    "Checkpoint the parts before and after the backward call instead.");
  if (selection_) selection_->second_run_begins();
  const std::vector<at::Tensor> inputs = inputs_again();
  std::exception_ptr error = second_run(inputs);
  if (error && selection_ && selection_->skips()) {
    drop_values();
    selection_->never_skip();
    error = second_run(inputs);
  }
  note_versions();
  if (tap::backward_id() >= 0) {
    // A retained graph does not need to keep the values until the next backward pass.
    tap::at_end_of_backward([region = weak_from_this()] {
      if (const auto alive = region.lock()) alive->drop_values();
    });
  }
  if (error) {
    drop_values();
    std::rethrow_exception(error);
  }
}

std::exception_ptr Region::second_run(const std::vector<at::Tensor>& inputs) {
  struct Running {
    explicit Running(bool& running) : flag(running) { flag = true, ++second_runs; }
    ~Running() { flag = false, --second_runs; }
    bool& flag;
    ActiveRun active;
  } const while_it_runs(running_);
  const c10::AutoGradMode grad(true);
  const auto writes = std::make_shared<BufferWrites>(options_.restore_buffers);
  const auto client = std::make_shared<SecondRun>(*this, writes);
  std::exception_ptr error;
  try {
    const ForwardStateScope state(state_);
    std::optional<tap::OpTapGuard> operators;
    if (selection_) operators.emplace(selection_->second_run());
    const tap::OpCheckGuard watch(writes);
    const tap::SavedTensorGuard taps(client);
    rerun_(inputs);
    client->check_count();
  } catch (const Enough&) {
  } catch (...) {
    error = std::current_exception();
  }
  writes->restore();
  return error;
}

/// Records the current versions of the values that backward will request. Buffers among them have been restored.
void Region::note_versions() const {
  for (const Place& place : places_) {
    const auto holder = place.holder.lock();
    if (holder && holder->value_.defined()) holder->version_ = holder->value_._version();
  }
}

void Region::drop_values() {
  const MutexLock lock(mutex_);
  for (const Place& place : places_) {
    if (const auto holder = place.holder.lock()) holder->value_.reset();
  }
}

}  // namespace bellows::recompute::detail
