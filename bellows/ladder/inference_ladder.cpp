#include "bellows/ladder/inference_ladder.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <utility>

#include "bellows/ladder/climb.h"
#include "bellows/ladder/results.h"

namespace bellows::train {

namespace {

class InferenceClimb final : public LadderClimb {
 public:
  InferenceClimb(const InferenceSubject& subject, const std::vector<InferenceTechnique>& techniques,
                 InferenceJobs& jobs, const LadderOptions& options, const LadderInstruments& instruments,
                 OnEvent on_event)
      : LadderClimb(options, instruments, 1, std::move(on_event), rungs_of(techniques)),
        subject_(subject),
        techniques_(techniques),
        jobs_(jobs),
        kept_(subject.start) {
    report_.model = subject.model;
    report_.data = subject.data;
    report_.plain.technique = "plain";
    report_.plain.title = "eager";
  }

 private:
  static std::vector<RungResult> rungs_of(const std::vector<InferenceTechnique>& techniques) {
    const Machine machine = this_machine();
    std::vector<RungResult> rungs;
    rungs.reserve(techniques.size());
    for (InferenceTechnique technique : techniques) {
      if (technique.expected_on) technique.expected = technique.expected_on(machine);
      rungs.push_back(rung_of(technique));
    }
    return rungs;
  }

  const InferenceTechnique& technique_of(size_t rung) const { return techniques_[rung - 1]; }

  InferenceSettings settings_of(size_t rung) const {
    InferenceSettings settings = kept_;
    technique_of(rung).apply(settings);
    return settings;
  }

  void measure_start() override {
    RungResult& result = report_.plain;
    result.verdict = Verdict::kept;
    const auto job = jobs_.with(kept_);
    describe(*job, result);
    const TimedWindows windows = measure_.windows({job.get()});
    const std::vector<double>& seconds = windows.seconds_per_sample.front();
    level_ = ratio_of(std::vector<double>(seconds.size(), 1.0), seconds);
    fill_rate(result, level_, step_samples_);
    fill_after_windows(*job, result);
    result.output_difference = 0;
    evaluate(*job, result);
  }

  std::string obstacle(size_t rung) override {
    const InferenceTechnique& technique = technique_of(rung);
    if (technique.is_correction && result_of(rung - 1).verdict != Verdict::less_accurate)
      return result_of(rung - 1).title + " did not lose too much accuracy";
    return technique.obstacle ? technique.obstacle(kept_, report_.machine) : "";
  }

  void measure_rung(size_t rung) override {
    RungResult& result = result_of(rung);
    const auto job = jobs_.with(settings_of(rung));
    describe(*job, result);
    {
      const auto previous = jobs_.with(kept_);
      fill_from_windows(measure_.windows({job.get(), previous.get()}), step_samples_, result);
    }
    fill_after_windows(*job, result);
    judge_by_speed(result);
    if (result.kept()) {
      evaluate(*job, result);
      judge_by_accuracy(result, report_.plain, options_);
    }
    const std::string remark = job->remark();
    if (!remark.empty()) result.note += (result.note.empty() ? "" : "; ") + remark;
  }

  void describe(LadderJob& job, RungResult& result) {
    step_samples_ = static_cast<double>(job.samples_per_epoch()) / static_cast<double>(job.steps_per_epoch());
    result.batch_size = std::llround(step_samples_);
    result.model_bytes = job.model_bytes();
  }

  /// Measures memory after compilation, and while no other model is in this process.
  void fill_after_windows(LadderJob& job, RungResult& result) const {
    job.take_peak_bytes();  // discards the peak of compilation and of windows
    job.run_steps(job.steps_per_epoch());
    result.peak_bytes = job.take_peak_bytes();
    result.output_difference = job.output_difference();
    if (result.peak_bytes == 0 || &result == &report_.plain) return;
    const auto peak = static_cast<double>(result.peak_bytes);
    const RungResult& below = kept_rung_ == 0 ? report_.plain : report_.rungs[kept_rung_ - 1];
    result.memory_ratio = static_cast<double>(below.peak_bytes) / peak;
    result.memory_over_start = static_cast<double>(report_.plain.peak_bytes) / peak;
  }

  void evaluate(LadderJob& job, RungResult& result) {
    if (!subject_.has_accuracy) return;
    show({.activity = "accuracy", .total = 1});
    result.accuracy = job.evaluate();
  }

  void keep(size_t rung) override { kept_ = settings_of(rung); }

  void measure_total() override {
    const auto top = jobs_.with(kept_);
    const auto start = jobs_.with(subject_.start);
    const TimedWindows windows = measure_.windows({top.get(), start.get()});
    const std::vector<double>& seconds = windows.seconds_per_sample[1];
    report_.speedup = paired_ratio(seconds, windows.seconds_per_sample[0]);
    report_.start_step_ms = 1e3 * static_cast<double>(start->samples_per_epoch()) * median(seconds) /
                            static_cast<double>(start->steps_per_epoch());
    report_.top_step_ms = report_.start_step_ms / report_.speedup.ratio;
  }

  void finish() override {}

  const InferenceSubject& subject_;
  const std::vector<InferenceTechnique>& techniques_;
  InferenceJobs& jobs_;
  InferenceSettings kept_;
};

}  // namespace

LadderReport run_inference_ladder(const InferenceSubject& subject, const std::vector<InferenceTechnique>& techniques,
                                  InferenceJobs& jobs, const LadderOptions& options,
                                  const LadderInstruments& instruments,
                                  const std::function<void(const LadderEvent&)>& on_event) {
  TORCH_CHECK_VALUE(options.max_drop >= 0 && options.max_drop <= 1,
                    "run_inference_ladder: expected max_drop from 0 to 1, got ", options.max_drop,
                    ". Write half a percentage point as 0.005.");
  check_measurement(options);
  LadderOptions same = options;
  same.goal = LadderGoal::inference;
  return InferenceClimb(subject, techniques, jobs, same, instruments, on_event).run();
}

}  // namespace bellows::train
