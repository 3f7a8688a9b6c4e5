#include "bellows/compile/backend.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>

#include "bellows/compile/onednn.h"
#include "bellows/compile/program_kernels.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/graph/functionalize.h"
#include "bellows/graph/program_runner.h"

namespace bellows::compile_detail {
namespace {

constexpr size_t kept_reports = 32;

/// One for the process: kernels are shared. Never destroyed, as libraries may be in use when the process ends.
KernelCache& kernel_cache() {
  static auto* const cache = new KernelCache;
  return *cache;
}

/// Inputs that are frozen become constants. Returns which inputs are left.
std::vector<size_t> freeze(graph::Program& program, const std::vector<c10::Storage>& frozen) {
  std::vector<size_t> left;
  std::vector<graph::ValueId> inputs;
  std::vector<int> moved(program.inputs.size(), -1);
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (!frozen[i]) {
      moved[i] = static_cast<int>(left.size());
      left.push_back(i);
      inputs.push_back(program.inputs[i]);
      continue;
    }
    program.constants.push_back(
        {.value = program.inputs[i], .tensor = program.values[program.inputs[i]].geometry.over(frozen[i])});
  }
  for (auto& output : program.outputs) {
    if (output.input >= 0) output.input = moved[output.input];
  }
  program.inputs = std::move(inputs);
  return left;
}

}  // namespace

/// A better program, once there is one, and what it was made for.
struct CpuBackend::Made {
  std::unique_ptr<graph::ProgramRunner> runner;
  std::vector<size_t> inputs;          ///< that it takes
  std::vector<c10::Storage> frozen{};  ///< of each input of the program as it came: null, or what it must be
};

class CpuBackend::Swapped : public graph::Executable {
 public:
  explicit Swapped(graph::Program program) : plain_(std::move(program)) {}

  void put(std::unique_ptr<Made> made) {
    const std::lock_guard lock(mutex_);
    next_ = std::move(made);
  }

  void run(std::span<c10::Storage> inputs, std::span<const c10::IValue> numbers,
           std::span<c10::Storage> outputs) override {
    {
      const std::lock_guard lock(mutex_);
      if (next_) made_ = std::move(next_);
    }
    if (!made_ || !is_for(inputs)) return plain_.run(inputs, numbers, outputs);
    if (made_->inputs.size() == inputs.size()) return made_->runner->run(inputs, numbers, outputs);
    taken_.clear();
    for (const size_t i : made_->inputs) taken_.push_back(std::move(inputs[i]));
    made_->runner->run(taken_, numbers, outputs);
    taken_.clear();
  }

 private:
  bool is_for(std::span<const c10::Storage> inputs) const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const c10::Storage& frozen = made_->frozen[i];
      if (frozen && frozen.unsafeGetStorageImpl() != inputs[i].unsafeGetStorageImpl()) return false;
    }
    return true;
  }

  graph::ProgramRunner plain_;
  std::unique_ptr<Made> made_;
  std::vector<c10::Storage> taken_;
  std::mutex mutex_;
  std::unique_ptr<Made> next_;
};

CpuBackend::CpuBackend(BackendOptions options)
    : options_(std::move(options)), worker_([this](const std::stop_token& stop) { work(stop); }) {}

CpuBackend::~CpuBackend() {
  worker_.request_stop();
  worker_.join();
}

std::vector<c10::Storage> CpuBackend::frozen_among(const graph::Program& program,
                                                   std::span<const c10::Storage> inputs) const {
  std::vector<c10::Storage> result(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool written = std::any_of(program.outputs.begin(), program.outputs.end(),
                                     [&](const auto& output) { return output.input == static_cast<int>(i); });
    const bool named = std::any_of(options_.frozen.begin(), options_.frozen.end(), [&](const at::Tensor& tensor) {
      return tensor.storage().unsafeGetStorageImpl() == inputs[i].unsafeGetStorageImpl();
    });
    if (named && !written) result[i] = inputs[i];
  }
  return result;
}

std::shared_ptr<graph::Executable> CpuBackend::prepare(graph::Program program, std::span<const c10::Storage> inputs) {
  const auto executable = std::make_shared<Swapped>(program);
  {
    const std::lock_guard lock(mutex_);
    std::vector<c10::Storage> frozen = frozen_among(program, inputs);
    jobs_.push_back({executable, std::move(program), std::move(frozen)});
  }
  changed_.notify_all();
  return executable;
}

bool CpuBackend::ready() const {
  const std::lock_guard lock(mutex_);
  return jobs_.empty() && !working_;
}

std::string CpuBackend::to_text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const std::string& report : reports_) text += report;
  if (!jobs_.empty() || working_) text += c10::str("being made: ", jobs_.size() + working_, " programs\n");
  return text;
}

void CpuBackend::work(const std::stop_token& stop) {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      working_ = false;
      if (!changed_.wait(lock, stop, [&] { return !jobs_.empty(); })) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      working_ = true;
    }
    static std::atomic<bool> said = false;
    try {
      if (!job.executable.expired()) make(job, stop);
    } catch (const std::exception& error) {
      if (!stop.stop_requested() && !said.exchange(true))
        log_warn("compile: a program runs as it was recorded, since making it faster failed: ", user_message(error));
    }
  }
}

void CpuBackend::make(Job& job, const std::stop_token& stop) {
  graph::Program& program = job.program;
  auto made = std::make_unique<Made>();
  made->inputs = freeze(program, job.inputs);
  made->frozen = std::move(job.inputs);
  const size_t before = program.instructions.size();
  graph::functionalize(program);
  const bool generates = !options_.exact && kernel_cache().can_compile();
  graph::PassOptions options{.exact = options_.exact, .without = {"epilogues"}, .can_generate = is_worth_generating};
  if (!generates) options.without.insert(options.without.end(), {"loops", "updates"});
  const graph::PassReport passes = graph::run_passes(program, options, passes_with_onednn());
  std::string report = c10::str("program of ", before, " operators:\n", passes.to_text());
  if (generates) report += generate_kernels(program, kernel_cache(), stop).to_text();
  made->runner = std::make_unique<graph::ProgramRunner>(std::move(program));
  const auto executable = job.executable.lock();
  if (!executable) return;
  executable->put(std::move(made));
  const std::lock_guard lock(mutex_);
  if (reports_.size() == kept_reports) reports_.erase(reports_.begin());
  reports_.push_back(std::move(report));
}

}  // namespace bellows::compile_detail
