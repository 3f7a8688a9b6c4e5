#include "bellows/inspect/profile/profile.h"

#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "bellows/inspect/profile/profile_log.h"
#include "bellows/inspect/tensor_recorder.h"
#include "bellows/inspect/trace.h"

namespace bellows::inspect {

namespace {

/// Number of steps in which operators are recorded.
constexpr int64_t recorded_steps = 3;

void run_steps(const std::function<void()>& step, int64_t count) {
  for (int64_t i = 0; i < count; ++i) step();
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

rusage process_usage() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage;
}

double cpu_seconds(const rusage& usage) {
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

/// Times the steps. Only the scopes of phases are observed, because observers of operators cost time.
void time_steps(StepProfile& profile, const std::function<void()>& step) {
  const auto log = std::make_shared<PhaseLog>();
  tap::ObserverGuard guard(log);
  const rusage before = process_usage();
  const double start_us = trace_now_us();
  run_steps(step, profile.steps);
  const auto count = static_cast<double>(profile.steps);
  profile.step_s = (trace_now_us() - start_us) / 1e6 / count;
  const rusage after = process_usage();
  guard.check();
  profile.cpu_s = (cpu_seconds(after) - cpu_seconds(before)) / count;
  profile.minor_faults = static_cast<double>(after.ru_minflt - before.ru_minflt) / count;
  profile.major_faults = static_cast<double>(after.ru_majflt - before.ru_majflt) / count;
  profile.phases = log->phases();
  double outside = profile.step_s;
  for (StepPhase& phase : profile.phases) outside -= phase.seconds /= count;
  profile.phases.push_back({"", std::max(outside, 0.0)});
}

void record_operators(StepProfile& profile, const std::function<void()>& step, const std::optional<Model>& model) {
  const auto log = std::make_shared<ProfileLog>(model ? ModuleMap(*model) : ModuleMap());
  {
    tap::ObserverGuard guard(log);
    run_steps(step, recorded_steps);
    guard.check();
  }
  log->add_to(profile, recorded_steps);
}

std::vector<SyncEvent> find_syncs(const std::function<void()>& step) {
  const SyncDetector detector({.action = SyncAction::count});
  step();
  return detector.events();
}

TensorTimeline record_memory(const std::function<void()>& step, const Model& model) {
  TensorRecorder recorder(model);
  step();  // creates blocks that exist when the next step begins
  recorder.begin();
  step();
  return recorder.end();
}

void record_trace(TraceWriter& trace, const std::function<void()>& step) {
  StepTracer tracer({.shapes = true});
  step();
  trace.append(tracer.writer());
}

}  // namespace

StepProfile profile(const std::function<void()>& step, const ProfileOptions& options) {
  TORCH_CHECK_VALUE(options.steps > 0 && options.warm_up_steps >= 0,
                    "profile: expected `steps` of at least 1 and `warm_up_steps` of at least 0, got ", options.steps,
                    " and ", options.warm_up_steps, ".");
  StepProfile profile{.peaks = options.peaks ? *options.peaks : measure_peaks(), .steps = options.steps};
  run_steps(step, options.warm_up_steps);
  time_steps(profile, step);
  record_operators(profile, step, options.model);
  profile.syncs = find_syncs(step);
  if (options.model) profile.memory = record_memory(step, *options.model);
  if (options.trace) record_trace(*options.trace, step);
  return profile;
}

}  // namespace bellows::inspect
