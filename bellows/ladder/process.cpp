#include "bellows/ladder/process.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "bellows/ladder/child_process.h"
#include "bellows/ladder/job.h"

namespace bellows::train {

namespace {

class ChildJob final : public LadderJob {
 public:
  explicit ChildJob(const ChildProcess::Make& make) : child_(make) { ask(JobRequest::made); }

  int64_t run_steps(int64_t n) override { return ask(JobRequest::run_steps, n).integer; }
  bool settle() override { return ask(JobRequest::settle).integer != 0; }
  int64_t steps_per_epoch() const override { return ask(JobRequest::steps_per_epoch).integer; }
  int64_t samples_per_epoch() const override { return ask(JobRequest::samples_per_epoch).integer; }
  double evaluate() override { return ask(JobRequest::evaluate).number; }
  int64_t take_peak_bytes() override { return ask(JobRequest::take_peak_bytes).integer; }
  StepShares phases() override { return ask(JobRequest::phases).shares; }
  std::string bottleneck() override { return ask(JobRequest::bottleneck).text; }
  int64_t model_bytes() override { return ask(JobRequest::model_bytes).integer; }
  double output_difference() override { return ask(JobRequest::output_difference).number; }
  std::string remark() override { return ask(JobRequest::remark).text; }
  int64_t sent_bytes() override { return ask(JobRequest::sent_bytes).integer; }

 private:
  JobAnswer ask(JobRequest request, int64_t argument = 0) const {
    child_.ask(request, argument);
    JobAnswer answer = answer_or_end();
    throw_failure(answer);
    return answer;
  }

  /// After an exception, the child may still send the answer, which the next question must not read.
  JobAnswer answer_or_end() const {
    try {
      return child_.answer();
    } catch (const std::exception&) {
      child_.end();
      throw;
    }
  }

  mutable ChildProcess child_;
};

/// A job that only returns a text, as its bottleneck.
class TextJob final : public LadderJob {
 public:
  explicit TextJob(std::string text) : text_(std::move(text)) {}
  int64_t run_steps(int64_t) override { return 0; }
  int64_t steps_per_epoch() const override { return 0; }
  int64_t samples_per_epoch() const override { return 0; }
  double evaluate() override { return 0; }
  std::string bottleneck() override { return text_; }

 private:
  std::string text_;
};

// ---- serialization of candidates

using CandidateJson = nlohmann::ordered_json;

CandidateJson candidate_json(const PlanCandidate& candidate) {
  const MemoryOptions& m = candidate.measures;
  return {candidate.recipe.to_yaml(),
          static_cast<int>(m.precision),
          static_cast<int>(m.state),
          static_cast<int>(m.saved),
          m.accumulate,
          candidate.changes,
          candidate.techniques,
          candidate.time_factor,
          candidate.predicted_bytes,
          candidate.other_training};
}

PlanCandidate candidate_from(const CandidateJson& json) {
  PlanCandidate candidate{.recipe = Recipe::parse(json.at(0).get<std::string>()), .measures = {}};
  candidate.measures.precision = static_cast<MemoryOptions::Precision>(json.at(1).get<int>());
  candidate.measures.state = static_cast<MemoryOptions::State>(json.at(2).get<int>());
  candidate.measures.saved = static_cast<MemoryOptions::Saved>(json.at(3).get<int>());
  json.at(4).get_to(candidate.measures.accumulate);
  json.at(5).get_to(candidate.changes);
  json.at(6).get_to(candidate.techniques);
  json.at(7).get_to(candidate.time_factor);
  json.at(8).get_to(candidate.predicted_bytes);
  json.at(9).get_to(candidate.other_training);
  return candidate;
}

}  // namespace

std::unique_ptr<LadderJob> ladder_job_in_own_process(const Recipe& recipe, uint64_t seed) {
  const auto make = [recipe, seed] { return make_ladder_job(recipe, seed); };
  return recipe.device.starts_with("cpu") ? in_own_process(make) : make();
}

std::string text_of_own_process(const std::function<std::string()>& make) {
  return in_own_process([&] { return std::make_unique<TextJob>(make()); })->bottleneck();
}

std::unique_ptr<LadderJob> in_own_process(const std::function<std::unique_ptr<LadderJob>()>& make) {
  return can_fork() ? std::make_unique<ChildJob>(make) : make();
}

std::vector<PlanCandidate> candidates_in_own_process(const Recipe& recipe, int64_t length) {
  const std::string text = text_of_own_process([&] {
    CandidateJson json = CandidateJson::array();
    for (const PlanCandidate& candidate : plan_candidates(recipe, length)) json.push_back(candidate_json(candidate));
    return json.dump();
  });
  std::vector<PlanCandidate> result;
  for (const CandidateJson& json : CandidateJson::parse(text)) result.push_back(candidate_from(json));
  return result;
}

}  // namespace bellows::train
