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

/// Returns the means of the phases of all steps. The time outside all scopes comes last.
std::vector<StepPhase> mean_phases(const std::vector<TimedStep>& steps) {
  std::vector<StepPhase> means;
  StepPhase outside;
  const auto count = static_cast<double>(steps.size());
  const auto add = [count](StepPhase& mean, const StepPhase& phase) {
    mean.seconds += phase.seconds / count;
    mean.wait_s += phase.wait_s / count;
  };
  for (const TimedStep& step : steps) {
    for (const StepPhase& phase : step.phases) {
      const auto known = std::ranges::find(means, phase.name, &StepPhase::name);
      if (phase.name.empty()) {
        add(outside, phase);
      } else {
        add(known == means.end() ? means.emplace_back(StepPhase{phase.name}) : *known, phase);
      }
    }
  }
  means.push_back(outside);
  return means;
}

/// Times the steps. Only the scopes of phases are observed, because observers of operators cost time.
void time_steps(StepProfile& profile, const std::function<void()>& step) {
  const auto log = std::make_shared<PhaseLog>();
  tap::ObserverGuard guard(log);
  const rusage before = process_usage();
  profile.timed.reserve(static_cast<size_t>(profile.steps));
  for (int64_t i = 0; i < profile.steps; ++i) {
    const double begin_us = trace_now_us();
    step();
    const double seconds = (trace_now_us() - begin_us) / 1e6;
    profile.timed.push_back({begin_us, seconds, log->take(seconds)});
  }
  const auto count = static_cast<double>(profile.steps);
  for (const TimedStep& timed : profile.timed) profile.step_s += timed.seconds / count;
  const rusage after = process_usage();
  guard.check();
  profile.cpu_s = (cpu_seconds(after) - cpu_seconds(before)) / count;
  profile.minor_faults = static_cast<double>(after.ru_minflt - before.ru_minflt) / count;
  profile.major_faults = static_cast<double>(after.ru_majflt - before.ru_majflt) / count;
  profile.phases = mean_phases(profile.timed);
}

void record_operators(StepProfile& profile, const std::function<void()>& step, const std::optional<Model>& model) {
  const auto log = std::make_shared<ProfileLog>(model ? ModuleMap(*model) : ModuleMap());
  {
    tap::ObserverGuard guard(log);
    for (int64_t i = 0; i < recorded_steps; ++i) {
      log->begin_step();
      step();
    }
    guard.check();
  }
  log->add_to(profile);
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
  const double start_us = trace_now_us();
  step();
  tracer.writer().add({"step", "step", start_us, trace_now_us() - start_us, 0, ""});
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
