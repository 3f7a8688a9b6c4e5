#include "bellows/serve/sequence/sequence_scheduler.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "bellows/serve/tensor_types.h"
#include "bellows/system/thread.h"

namespace bellows::serve {

namespace {

/// Cancelled requests free their place in the queue after this time at the latest.
constexpr auto cancel_interval = std::chrono::milliseconds(50);

/// Puts one row for each request into a tensor of zeros.
at::Tensor in_slots(std::span<const SequenceRow> batch, int64_t rows,
                    const std::function<const at::Tensor&(const SequenceRow&)>& tensor_of) {
  const at::Tensor& first = tensor_of(batch.front());
  if (rows == 1) return first;
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes[0] = rows;
  at::Tensor all = at::zeros(sizes, first.options());
  for (const SequenceRow& row : batch) all.narrow(0, static_cast<int64_t>(row.slot), 1).copy_(tensor_of(row));
  return all;
}

void check_outputs(const std::vector<at::Tensor>& outputs, const SequenceOptions& options, int64_t rows) {
  const auto& states = options.sequences.states;
  TORCH_CHECK(outputs.size() == options.outputs + states.size(), "the model returned ", outputs.size(),
              " outputs, expected ", options.outputs, " and ", states.size(), " states.");
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool fits =
        outputs[i].defined() && (options.max_batch_size == 0 || (outputs[i].dim() > 0 && outputs[i].size(0) == rows));
    TORCH_CHECK(fits, "the inputs have ", rows, " rows, but output ", i, " has another number.");
  }
  for (size_t i = 0; i < states.size(); ++i) {
    const at::Tensor& output = outputs[options.outputs + i];
    const at::IntArrayRef sizes = output.sizes().slice(options.max_batch_size > 0 ? 1 : 0);
    const bool fits = output.scalar_type() == states[i].dtype &&
                      std::ranges::equal(states[i].dims, sizes,
                                         [](int64_t stated, int64_t own) { return stated < 0 || stated == own; });
    TORCH_CHECK(fits, "the state \"", states[i].output,
                "\" has another dtype or other sizes than its configuration: ", config_type_name(states[i].dtype), " ",
                shape_text(states[i].dims), ".");
  }
}

}  // namespace

SequenceScheduler::SequenceScheduler(std::vector<RunModel> instances, SequenceOptions options,
                                     std::shared_ptr<ModelStatistics> statistics)
    : options_(std::move(options)), statistics_(std::move(statistics)), queue_(options_, instances.size()) {
  const MutexLock lock(join_mutex_);
  try {
    for (size_t i = 0; i < instances.size(); ++i)
      threads_.push_back(
          start_thread("model instance", [this, i, call = std::move(instances[i])] { serve_instance(i, call); }));
  } catch (...) {
    {
      const MutexLock queue_lock(mutex_);
      draining_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    throw;
  }
}

SequenceScheduler::~SequenceScheduler() {
  drain();
}

RequestRunner::Submitted SequenceScheduler::submit(PendingRequest& request) {
  {
    const MutexLock lock(mutex_);
    if (draining_) return Submitted::draining;
    const auto now = Clock::now();
    queue_.expire(now);
    if (!queue_.push(request, now)) return Submitted::full;
    statistics_->set_pending(queue_.size());
  }
  changed_.notify_all();  // only the instance of the sequence can run it
  return Submitted::queued;
}

void SequenceScheduler::drain() {
  {
    const MutexLock lock(mutex_);
    draining_ = true;
  }
  changed_.notify_all();
  const MutexLock lock(join_mutex_);
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void SequenceScheduler::serve_instance(size_t instance, const RunModel& run) {
  UniqueLock lock(mutex_);
  while (true) {
    const auto now = Clock::now();
    std::vector<PendingRequest> cancelled = queue_.take_cancelled();
    if (queue_.expire(now, draining_)) changed_.notify_all();
    std::vector<SequenceRow> batch = queue_.take_batch(instance, now);
    if (!cancelled.empty() || !batch.empty()) {
      statistics_->set_pending(queue_.size());
      lock.unlock();
      answer_cancelled(std::move(cancelled));
      if (!batch.empty()) run_batch(instance, run, batch);
      lock.lock();
      continue;
    }
    if (draining_ && queue_.size() == 0) return;
    auto until = queue_.next_expiry();
    if (queue_.size() > 0) until = std::min(until, now + cancel_interval);
    if (until == Clock::time_point::max())
      changed_.wait(lock);
    else
      changed_.wait_for(lock, until - now);
  }
}

at::Tensor SequenceScheduler::control_of(const SequenceControl& control, std::span<const SequenceRow> batch,
                                         int64_t rows) const {
  using Kind = SequenceControl::Kind;
  const std::vector<int64_t> sizes =
      options_.max_batch_size > 0 ? std::vector<int64_t>{rows, 1} : std::vector<int64_t>{1};
  at::Tensor ids = at::zeros(sizes, c10::kLong), values = at::full(sizes, control.if_false, control.dtype);
  for (const SequenceRow& row : batch) {
    const SequenceFlags flags = row.request.sequence;
    const auto place = options_.max_batch_size > 0 ? static_cast<int64_t>(row.slot) : 0;
    static_cast<int64_t*>(ids.mutable_data_ptr())[place] = static_cast<int64_t>(flags.id);
    const bool holds = control.kind == Kind::ready || (control.kind == Kind::start && flags.start) ||
                       (control.kind == Kind::end && flags.end);
    if (holds) values.narrow(0, place, 1).fill_(control.if_true);
  }
  return control.kind == Kind::id ? ids.to(control.dtype) : values;
}

std::vector<at::Tensor> SequenceScheduler::inputs_of(std::span<const SequenceRow> batch, int64_t rows) const {
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < batch.front().request.inputs.size(); ++i)
    inputs.push_back(
        in_slots(batch, rows, [i](const SequenceRow& row) -> const at::Tensor& { return row.request.inputs[i]; }));
  for (const SequenceControl& control : options_.sequences.controls) inputs.push_back(control_of(control, batch, rows));
  for (size_t i = 0; i < options_.sequences.states.size(); ++i)
    inputs.push_back(in_slots(batch, rows, [i](const SequenceRow& row) -> const at::Tensor& { return row.states[i]; }));
  return inputs;
}

void SequenceScheduler::run_rows(size_t instance, const RunModel& run, std::span<SequenceRow> batch) {
  const auto start = Clock::now();
  const int64_t rows = options_.max_batch_size > 0 ? static_cast<int64_t>(batch.back().slot) + 1 : 1;
  const std::vector<at::Tensor> inputs = inputs_of(batch, rows);
  const auto ready = Clock::now();
  const std::vector<at::Tensor> outputs = run(inputs);
  check_outputs(outputs, options_, rows);
  const auto computed = Clock::now();
  std::vector<InferenceResult> results(batch.size());
  std::vector<std::vector<at::Tensor>> states(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    for (size_t j = 0; j < outputs.size(); ++j) {
      const at::Tensor own = rows == 1 ? outputs[j] : outputs[j].narrow(0, static_cast<int64_t>(batch[i].slot), 1);
      if (j < options_.outputs)
        results[i].outputs.push_back(own);
      else
        states[i].push_back(own.clone());  // outputs of a model may share memory with its inputs
    }
    batch[i].request.times.inputs_ready = ready;
    batch[i].request.times.computed = computed;
  }
  // From here on, nothing throws, so each request is answered once.
  for (size_t i = 0; i < batch.size(); ++i) batch[i].states = std::move(states[i]);
  statistics_->add_execution(static_cast<int64_t>(batch.size()), ready - start, computed - ready,
                             Clock::now() - computed);
  finish(instance, batch);
  for (size_t i = 0; i < batch.size(); ++i) answer_request(batch[i].request, std::move(results[i]), *statistics_);
}

/// A client that has its answer can send the next request, so the sequence is updated before.
void SequenceScheduler::finish(size_t instance, std::span<SequenceRow> batch) {
  {
    const MutexLock lock(mutex_);
    for (SequenceRow& row : batch)
      queue_.finish(instance, row.slot, row.request.sequence.end, std::move(row.states), Clock::now());
  }
  changed_.notify_all();
}

void SequenceScheduler::run_batch(size_t instance, const RunModel& run, std::span<SequenceRow> batch) {
  if (batch.size() > 1) {
    try {
      return run_rows(instance, run, batch);
    } catch (...) {  // each row is tried alone, so that it fails only because of its own data
    }
  }
  for (SequenceRow& row : batch) {
    try {
      run_rows(instance, run, {&row, 1});
    } catch (...) {
      const RequestError error = model_error(std::current_exception());
      finish(instance, {&row, 1});
      answer_request(row.request, {.error = error}, *statistics_);
    }
  }
}

void SequenceScheduler::answer_cancelled(std::vector<PendingRequest> cancelled) {
  for (PendingRequest& request : cancelled) {
    request.times.done = Clock::now();
    statistics_->add_failure(FailureReason::cancelled, request.times.done - request.times.received);
    InferenceResult result{.times = request.times};
    result.error.emplace(status_cancelled,
                         "the request was cancelled because its client, or that of the start of its sequence, "
                         "disconnected.");
    request.done(std::move(result));
  }
}

}  // namespace bellows::serve
