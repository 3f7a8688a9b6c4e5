#include "bellows/ladder/rank_processes.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bellows/comm/world.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/ladder/child_process.h"
#include "bellows/ladder/job.h"
#include "bellows/system/random_token.h"
#include "bellows/system/stop.h"

namespace bellows::train {

namespace {

constexpr int others_report_ms = 1000;  ///< time in which the other ranks report their errors, too

/// A folder for the file at which the ranks meet.
class MeetingFolder {
 public:
  MeetingFolder() {
    path_ = std::filesystem::temp_directory_path() / ("bellows-ranks-" + random_token());
    std::filesystem::create_directory(path_);
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all);
  }
  ~MeetingFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  MeetingFolder(const MeetingFolder&) = delete;
  MeetingFolder& operator=(const MeetingFolder&) = delete;
  std::string store() const { return "file://" + (path_ / "store").string(); }

 private:
  std::filesystem::path path_;
};

/// The job of one rank, and the world to which it belongs.
class RankJob final : public LadderJob {
 public:
  RankJob(World world, const MakeRankJob& make) : world_(std::move(world)), job_(make(world_.group())) {}

  int64_t run_steps(int64_t n) override { return job_->run_steps(n); }
  bool settle() override { return job_->settle(); }
  int64_t steps_per_epoch() const override { return job_->steps_per_epoch(); }
  int64_t samples_per_epoch() const override { return job_->samples_per_epoch(); }
  double evaluate() override { return job_->evaluate(); }
  int64_t take_peak_bytes() override { return job_->take_peak_bytes(); }
  StepShares phases() override { return job_->phases(); }
  std::string bottleneck() override { return job_->bottleneck(); }
  int64_t model_bytes() override { return job_->model_bytes(); }
  std::string remark() override { return job_->remark(); }
  int64_t sent_bytes() override { return job_->sent_bytes(); }

 private:
  World world_;
  std::unique_ptr<LadderJob> job_;
};

struct RankPlace {
  int rank = 0, ranks = 1;
  int64_t threads = 1;
  std::string store, token;
};

/// Runs in the process of a rank.
std::unique_ptr<LadderJob> join_ranks(const RankPlace& place, const MakeRankJob& make) {
  const std::string rank = std::to_string(place.rank), ranks = std::to_string(place.ranks);
  for (const auto& [name, value] : {std::pair<const char*, std::string>{"RANK", rank},
                                    {"LOCAL_RANK", rank},
                                    {"WORLD_SIZE", ranks},
                                    {"LOCAL_WORLD_SIZE", ranks},
                                    {"BELLOWS_STORE", place.store},
                                    {"BELLOWS_TOKEN", place.token},
                                    {"OMP_NUM_THREADS", std::to_string(place.threads)}})
    setenv(name, value.c_str(), /*overwrite=*/1);
  at::set_num_threads(static_cast<int>(place.threads));
  set_log_level(place.rank == 0 ? LogLevel::warn : LogLevel::error);  // rank 0 reports what all ranks would report
  return std::make_unique<RankJob>(init(), make);
}

class RanksJob final : public LadderJob {
 public:
  RanksJob(const MakeRankJob& make, int ranks, int64_t threads) {
    RankPlace place{.ranks = ranks, .threads = threads, .store = folder_.store(), .token = random_token()};
    for (; place.rank < ranks; ++place.rank) {
      processes_.push_back(std::make_unique<ChildProcess>([place, make] { return join_ranks(place, make); }));
    }
    ask(JobRequest::made);
  }

  int64_t run_steps(int64_t n) override { return ask(JobRequest::run_steps, n)[0].integer; }
  bool settle() override { return ask(JobRequest::settle)[0].integer != 0; }
  int64_t steps_per_epoch() const override { return ask(JobRequest::steps_per_epoch)[0].integer; }
  int64_t samples_per_epoch() const override { return ask(JobRequest::samples_per_epoch)[0].integer; }
  double evaluate() override { return ask(JobRequest::evaluate)[0].number; }
  int64_t take_peak_bytes() override { return largest(ask(JobRequest::take_peak_bytes)); }
  StepShares phases() override { return ask(JobRequest::phases)[0].shares; }
  std::string bottleneck() override { return ask(JobRequest::bottleneck)[0].text; }
  int64_t model_bytes() override { return ask(JobRequest::model_bytes)[0].integer; }
  std::string remark() override { return ask(JobRequest::remark)[0].text; }
  int64_t sent_bytes() override { return largest(ask(JobRequest::sent_bytes)); }

 private:
  static int64_t largest(const std::vector<JobAnswer>& answers) {
    return std::ranges::max_element(answers, {}, &JobAnswer::integer)->integer;
  }

  /// Asks all ranks at the same time, and returns their answers.
  std::vector<JobAnswer> ask(JobRequest request, int64_t argument = 0) const {
    TORCH_CHECK(!processes_.empty(), "ladder: the ranks of this run have ended after an error.");
    for (const auto& process : processes_) process->ask(request, argument);
    std::vector<std::optional<JobAnswer>> answers(processes_.size());
    bool failed = false;
    try {
      while (wait_for_some(answers, failed ? others_report_ms : -1)) {
        for (const auto& answer : answers) failed |= answer && answer->failure != JobFailure::none;
      }
    } catch (const std::exception&) {
      processes_.clear();  // they may still send answers, which the next question must not read
      throw;
    }
    if (failed) end(answers);
    std::vector<JobAnswer> result;
    result.reserve(answers.size());
    for (auto& answer : answers) result.push_back(std::move(*answer));
    return result;
  }

  /// Receives the answers that are available, and waits for at least one.
  /// Params:  timeout_ms – -1: no limit
  /// Returns: false if no answer is missing, or if none arrived in time
  /// Throws:  Stopped; c10::Error if waiting fails
  bool wait_for_some(std::vector<std::optional<JobAnswer>>& answers, int timeout_ms) const {
    std::vector<pollfd> sockets;
    std::vector<size_t> ranks;
    for (size_t rank = 0; rank < answers.size(); ++rank) {
      if (answers[rank]) continue;
      sockets.push_back({processes_[rank]->socket(), POLLIN, 0});
      ranks.push_back(rank);
    }
    if (sockets.empty()) return false;
    constexpr int slice_ms = 50;
    for (int waited = 0;; waited += slice_ms) {
      const int ready = poll(sockets.data(), sockets.size(), slice_ms);
      if (ready > 0) break;
      TORCH_CHECK(ready == 0 || errno == EINTR, "ladder: cannot wait for the ranks: ", errno_message(errno), ".");
      throw_if_stopped("measuring");
      if (timeout_ms >= 0 && waited >= timeout_ms) return false;
    }
    for (size_t i = 0; i < sockets.size(); ++i) {
      if (sockets[i].revents != 0) answers[ranks[i]] = processes_[ranks[i]]->answer();
    }
    return true;
  }

  /// Ends all ranks, and throws the most specific error.
  [[noreturn]] void end(const std::vector<std::optional<JobAnswer>>& answers) const {
    processes_.clear();
    for (const JobFailure kind : {JobFailure::recipe, JobFailure::value, JobFailure::ended, JobFailure::other}) {
      for (size_t rank = 0; rank < answers.size(); ++rank) {
        if (!answers[rank] || answers[rank]->failure != kind) continue;
        JobAnswer answer = *answers[rank];
        if (kind == JobFailure::ended)
          answer.text = c10::str("ladder: the process of rank ", rank, " of ", answers.size(),
                                 " ended unexpectedly. It may have run out of memory.");
        throw_failure(answer);
      }
    }
    TORCH_CHECK(false, "ladder: a rank failed.");
  }

  MeetingFolder folder_;  ///< outlives the ranks, which use its store all the time
  mutable std::vector<std::unique_ptr<ChildProcess>> processes_;  ///< one per rank; none after an error
};

}  // namespace

std::unique_ptr<LadderJob> on_ranks(const MakeRankJob& make, int ranks, int64_t threads) {
  TORCH_CHECK_VALUE(ranks >= 1 && threads >= 1, "ladder: expected at least 1 rank and 1 thread, got ", ranks,
                    " ranks and ", threads, " threads.");
  TORCH_CHECK_VALUE(can_fork(),
                    "ladder: this process has several threads, so it cannot start ranks. Start the ladder before your "
                    "program uses other threads.");
  return std::make_unique<RanksJob>(make, ranks, threads);
}

std::unique_ptr<LadderJob> ladder_job_on_ranks(const Recipe& recipe, uint64_t seed, int ranks, int64_t threads) {
  TORCH_CHECK_VALUE(recipe.device.starts_with("cpu"),
                    "ladder: several ranks are measured only on the CPU, got device = ", recipe.device,
                    ". Time `bellows launch -n ", ranks, " -- bellows train` instead.");
  return on_ranks([recipe, seed](const comm::Group& group) { return make_ladder_job(recipe, seed, group); }, ranks,
                  threads);
}

}  // namespace bellows::train
