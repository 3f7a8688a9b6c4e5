#include "bellows/serve/ensemble/ensemble.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/core/mutex.h"
#include "bellows/serve/batch/running_requests.h"
#include "bellows/serve/loaded_model.h"
#include "bellows/serve/tensor_types.h"

namespace bellows::serve {

namespace {

/// A model that is not drained while the object exists.
class PinnedModel {
 public:
  explicit PinnedModel(std::shared_ptr<LoadedModel> model) : model_(std::move(model)) {}
  ~PinnedModel() {
    if (model_) model_->unpin();
  }
  PinnedModel(PinnedModel&&) = default;
  PinnedModel(const PinnedModel&) = delete;
  PinnedModel& operator=(const PinnedModel&) = delete;
  PinnedModel& operator=(PinnedModel&&) = delete;
  LoadedModel& operator*() const { return *model_; }

 private:
  std::shared_ptr<LoadedModel> model_;
};

/// Values that all requests of an ensemble share.
struct Ensemble {
  std::shared_ptr<const ModelSignature> signature{};
  EnsemblePlan plan{};
  FindModel find{};
  std::shared_ptr<ModelStatistics> statistics{};
  RunningRequests running{};
};

RequestError with_step(const EnsemblePlan& plan, size_t step, const RequestError& error) {
  return {error.status(), step_text(step, plan.steps[step].model) + ": " + error.what(), error.retry_after_s()};
}

PinnedModel pin_model(const Ensemble& ensemble, size_t step) {
  const EnsemblePlan::Step& planned = ensemble.plan.steps[step];
  constexpr int attempts = 3;
  try {
    for (int attempt = 0; attempt < attempts; ++attempt) {
      std::shared_ptr<LoadedModel> model = ensemble.find(planned.model, planned.version);
      if (!model->pin()) continue;  // it is being replaced
      PinnedModel pinned(std::move(model));
      if (!same_tensors(*planned.signature, *(*pinned).signature()))
        throw RequestError(status_unavailable,
                           "the model was replaced by one with other inputs or outputs. Load the ensemble again.");
      return pinned;
    }
    throw RequestError(status_unavailable, "the model is being unloaded.", 1);
  } catch (const RequestError& error) {
    throw with_step(ensemble.plan, step, error);
  }
}

/// One request. It exists until its last step has ended.
class EnsembleRequest : public std::enable_shared_from_this<EnsembleRequest> {
 public:
  EnsembleRequest(std::shared_ptr<Ensemble> ensemble, std::vector<PinnedModel> models)
      : ensemble_(std::move(ensemble)),
        models_(std::move(models)),
        values_(ensemble_->plan.tensors.size()),
        started_(ensemble_->plan.steps.size()) {}
  ~EnsembleRequest() {
    models_.clear();
    ensemble_->running.remove();
  }
  EnsembleRequest(const EnsembleRequest&) = delete;
  EnsembleRequest& operator=(const EnsembleRequest&) = delete;

  void start(PendingRequest request) {
    request_ = std::move(request);
    request_.times.queued = request_.times.taken = request_.times.inputs_ready = Clock::now();
    {
      const MutexLock lock(mutex_);
      for (size_t i = 0; i < request_.inputs.size(); ++i) {
        values_[i].tensor = std::move(request_.inputs[i]);
        if (i < request_.bytes.size()) values_[i].bytes = std::move(request_.bytes[i]);
      }
    }
    advance();
  }

 private:
  struct Value {
    at::Tensor tensor{};
    std::shared_ptr<const BytesTensor> bytes{};
    bool known() const { return tensor.defined() || bytes; }
  };
  const EnsemblePlan& plan() const { return ensemble_->plan; }

  /// Starts the steps whose inputs are there, or answers the request.
  void advance() {
    std::vector<size_t> ready;
    std::optional<InferenceResult> result;
    {
      const MutexLock lock(mutex_);
      if (answered_) return;
      const auto known = [this](size_t tensor) BELLOWS_REQUIRES(mutex_) { return values_[tensor].known(); };
      if (std::ranges::all_of(plan().outputs, known)) {
        answered_ = true;
        result = collect();
      } else {
        for (size_t i = 0; i < plan().steps.size(); ++i) {
          if (started_[i] || !std::ranges::all_of(plan().steps[i].inputs, known)) continue;
          started_[i] = true;
          ready.push_back(i);
        }
      }
    }
    if (result) return answer(std::move(*result));
    for (const size_t step : ready) start_step(step);
  }

  void start_step(size_t index) {
    try {
      PendingRequest pending = request_of(index);
      pending.done = [self = shared_from_this(), index](const InferenceResult& result) {
        self->finish_step(index, result);
      };
      const auto submitted = (*models_[index]).submit(pending);
      if (submitted == RequestRunner::Submitted::full)
        fail(index, {status_unavailable, "the queue of the model is full.", 1});
      if (submitted == RequestRunner::Submitted::draining)
        fail(index, {status_unavailable, "the model is being unloaded.", 1});
    } catch (const RequestError& error) {
      fail(index, error);
    } catch (const std::exception& error) {
      fail(index, {status_internal, user_message(error)});
    }
  }

  PendingRequest request_of(size_t index) {
    const EnsemblePlan::Step& step = plan().steps[index];
    PendingRequest pending{.priority = request_.priority,
                           .timeout_us = remaining_us(),
                           .times = {.received = Clock::now()},
                           .cancelled = request_.cancelled};
    if (request_.is_cancelled())
      throw RequestError(status_cancelled, "the request was cancelled because the client disconnected.");
    const MutexLock lock(mutex_);
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const Value& value = values_[step.inputs[i]];
      pending.inputs.push_back(value.tensor);
      if (!value.bytes) continue;
      pending.bytes.resize(step.inputs.size());
      pending.bytes[i] = value.bytes;
    }
    pending.rows = rows_of(*step.signature, pending);
    return pending;
  }

  /// Returns the common size of the first axis, if the model has a batch axis.
  static int64_t rows_of(const ModelSignature& model, const PendingRequest& request) {
    if (model.max_batch_size == 0) return 1;
    std::optional<int64_t> rows;
    for (size_t i = 0; i < request.inputs.size(); ++i) {
      const int64_t own = request.inputs[i].defined() ? request.inputs[i].size(0) : request.bytes[i]->sizes.at(0);
      if (own < 1 || own > model.max_batch_size || rows.value_or(own) != own)
        throw RequestError(status_bad_request,
                           c10::str("the input \"", model.inputs[i].name, "\" has ", own, " rows, but expected ",
                                    rows ? *rows : 1, " to ", rows ? *rows : model.max_batch_size, "."));
      rows = own;
    }
    return rows.value_or(1);
  }

  uint64_t remaining_us() const {
    if (request_.timeout_us == 0) return 0;
    const auto used = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - request_.times.queued);
    if (static_cast<uint64_t>(used.count()) >= request_.timeout_us)
      throw RequestError(status_unavailable, "the request timed out before this step.", 1);
    return request_.timeout_us - static_cast<uint64_t>(used.count());
  }

  void finish_step(size_t index, const InferenceResult& result) {
    if (result.error) return fail(index, *result.error);
    try {
      take_outputs(plan().steps[index], result);
    } catch (const RequestError& error) {
      return fail(index, error);
    }
    advance();
  }

  void take_outputs(const EnsemblePlan::Step& step, const InferenceResult& result) {
    for (const auto& [place, tensor] : step.outputs) {
      const TensorSpec& spec = step.signature->outputs[place];
      Value value;
      if (place < result.bytes.size()) value.bytes = result.bytes[place];
      if (!value.bytes && place < result.outputs.size()) value.tensor = result.outputs[place];
      const bool fits = value.bytes ? spec.dtype == bytes_dtype
                                    : value.tensor.defined() && value.tensor.scalar_type() == spec.dtype &&
                                          sizes_fit(spec, step.signature->max_batch_size > 0,
                                                    {value.tensor.sizes().data(), value.tensor.sizes().size()});
      if (!fits)
        throw RequestError(status_internal, "the model returned the output \"" + spec.name +
                                                "\" with another dtype or other sizes than its configuration states.");
      if (value.tensor.defined()) value.tensor = value.tensor.contiguous();
      const MutexLock lock(mutex_);
      values_[tensor] = std::move(value);
    }
  }

  InferenceResult collect() BELLOWS_REQUIRES(mutex_) {
    InferenceResult result;
    for (size_t i = 0; i < plan().outputs.size(); ++i) {
      const Value& value = values_[plan().outputs[i]];
      result.outputs.push_back(value.tensor);
      if (!value.bytes) continue;
      result.bytes.resize(plan().outputs.size());
      result.bytes[i] = value.bytes;
    }
    return result;
  }

  void fail(size_t index, const RequestError& error) {
    {
      const MutexLock lock(mutex_);
      if (answered_) return;
      answered_ = true;
    }
    answer({.error = with_step(plan(), index, error)});
  }

  void answer(InferenceResult result) {
    RequestTimes& times = request_.times;
    times.computed = times.done = Clock::now();
    if (!result.error) {
      ensemble_->statistics->add_success(times, request_.rows);
      ensemble_->statistics->add_execution(request_.rows, {}, times.computed - times.inputs_ready, {});
    } else {
      const bool cancelled = result.error->status() == status_cancelled;
      const bool rejected = result.error->status() == status_unavailable;
      ensemble_->statistics->add_failure(cancelled  ? FailureReason::cancelled
                                         : rejected ? FailureReason::rejected
                                                    : FailureReason::other,
                                         times.done - times.received);
    }
    result.times = times;
    request_.done(std::move(result));
  }

  const std::shared_ptr<Ensemble> ensemble_;
  std::vector<PinnedModel> models_;  ///< of the steps
  PendingRequest request_{};         ///< its inputs are in `values_`
  Mutex mutex_;
  std::vector<Value> values_ BELLOWS_GUARDED_BY(mutex_);
  std::vector<bool> started_ BELLOWS_GUARDED_BY(mutex_);
  bool answered_ BELLOWS_GUARDED_BY(mutex_) = false;
};

class EnsembleRunner final : public RequestRunner {
 public:
  explicit EnsembleRunner(std::shared_ptr<Ensemble> ensemble) : ensemble_(std::move(ensemble)) {}
  ~EnsembleRunner() override { ensemble_->running.drain(); }

  Submitted submit(PendingRequest& request) override {
    std::vector<PinnedModel> models;
    for (size_t i = 0; i < ensemble_->plan.steps.size(); ++i) models.push_back(pin_model(*ensemble_, i));
    if (!ensemble_->running.add()) return Submitted::draining;
    const auto started = std::make_shared<EnsembleRequest>(ensemble_, std::move(models));
    started->start(std::move(request));
    return Submitted::queued;
  }
  void drain() override { ensemble_->running.drain(); }

 private:
  const std::shared_ptr<Ensemble> ensemble_;
};

}  // namespace

std::unique_ptr<RequestRunner> make_ensemble(std::shared_ptr<const ModelSignature> signature,
                                             const std::vector<EnsembleStep>& steps, FindModel find,
                                             std::shared_ptr<ModelStatistics> statistics) {
  auto ensemble = std::make_shared<Ensemble>();
  ensemble->plan = plan_ensemble(*signature, steps, find);
  ensemble->signature = std::move(signature);
  ensemble->find = std::move(find);
  ensemble->statistics = std::move(statistics);
  return std::make_unique<EnsembleRunner>(std::move(ensemble));
}

}  // namespace bellows::serve
