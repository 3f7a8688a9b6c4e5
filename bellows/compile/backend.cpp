#include "bellows/compile/backend.h"

#include <c10/util/StringUtil.h>

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "bellows/compile/attention.h"
#include "bellows/compile/cost_model.h"
#include "bellows/compile/embedding.h"
#include "bellows/compile/jit/kernel_cache.h"
#include "bellows/compile/jit/program_kernels.h"
#include "bellows/compile/onednn/onednn.h"
#include "bellows/compile/program_family.h"
#include "bellows/compile/shared_constants.h"
#include "bellows/compile/shared_matmul.h"
#include "bellows/core/device.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/core/mutex.h"
#include "bellows/graph/execution/branches.h"
#include "bellows/graph/passes/autocast.h"
#include "bellows/graph/passes/functionalize.h"
#include "bellows/graph/passes/recompute.h"
#include "bellows/graph/recording/frozen.h"
#include "bellows/kernels/parallel.h"
#include "bellows/system/machine.h"
#include "bellows/system/stop.h"
#include "bellows/system/thread.h"

namespace bellows::compile_detail {
namespace {

constexpr size_t kept_reports = 32, most_names = 24;
constexpr std::chrono::seconds longest_after_stop(8);

/// The process-wide mutex of all back ends. It is locked only briefly, and during fork(). In a child process it is
/// therefore free, and the data that it protects is consistent.
Mutex& process_mutex() {
  static auto* const mutex = new Mutex;  // never destroyed: threads may outlive static objects
  return *mutex;
}

struct SharedCache {
  std::once_flag made;
  std::unique_ptr<KernelCache> cache;
};

/// Replaced after fork(): a thread of the parent may hold the old cache, and the child must not wait for it. Never
/// destroyed, because libraries may be in use when the process ends.
std::atomic<SharedCache*> shared_cache = new SharedCache;

/// The kernel cache of all back ends of this process.
KernelCache& kernel_cache() {
  SharedCache& shared = *shared_cache.load();
  std::call_once(shared.made, [&] { shared.cache = std::make_unique<KernelCache>(); });
  return *shared.cache;
}

void watch_forks() {
  // Not checked: the first handler locks the mutex, and the others unlock it.
  static const int registered = ::pthread_atfork([]() BELLOWS_NO_THREAD_SAFETY_ANALYSIS { process_mutex().lock(); },
                                                 []() BELLOWS_NO_THREAD_SAFETY_ANALYSIS { process_mutex().unlock(); },
                                                 []() BELLOWS_NO_THREAD_SAFETY_ANALYSIS {
                                                   process_mutex().unlock();
                                                   shared_cache = new SharedCache;
                                                 });
  TORCH_CHECK(registered == 0, "compile: cannot prepare for fork(): ", errno_message(registered), ".");
}

/// The names of a program's instructions with their counts; for kernels, with the operators that they contain.
std::string names_of(const graph::Program& program) {
  std::map<std::string, int64_t> times;
  for (const graph::Instruction& one : program.instructions)
    ++times[one.kernel ? one.kernel->name() : one.op ? one.op->name : one.kind];
  std::vector<std::pair<int64_t, std::string>> rows;
  rows.reserve(times.size());
  for (const auto& [name, count] : times) rows.emplace_back(count, name);
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text = "runs:\n";
  for (size_t i = 0; i < std::min(rows.size(), most_names); ++i)
    text += c10::str("  ", rows[i].first, " × ", rows[i].second, "\n");
  if (rows.size() > most_names) text += c10::str("  and ", rows.size() - most_names, " others\n");
  return text;
}

std::vector<graph::Pass> cpu_passes(const BackendOptions& options) {
  std::vector<graph::Pass> list = passes_with_onednn();
  // Before the pass "onednn", which replaces the matmuls that it finds.
  graph::insert_before(has_onednn() ? "onednn" : "loops", attention_kernels_pass(), list);
  graph::insert_before("loops", embedding_pass(), list);
  graph::insert_before("loops", shared_matmul_pass(), list);
  if (options.autocast) graph::insert_before("constants", graph::autocast_pass(*options.autocast), list);
  if (options.widen_bf16) graph::insert_before("constants", graph::widening_pass(c10::kBFloat16), list);
  for (const graph::Pass& pass : options.extra_passes) graph::insert_before("loops", pass, list);
  return list;
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The names of all passes that any back end can have, each once.
std::vector<std::string> pass_names(BackendOptions options) {
  options.autocast = c10::kBFloat16;
  options.widen_bf16 = true;
  std::vector<std::string> names;
  for (const graph::Pass& pass : cpu_passes(options)) {
    if (!contains(names, pass.name)) names.push_back(pass.name);
  }
  for (const char* name : {"onednn", recompute_step, kernels_step, branches_step}) {
    if (!contains(names, name)) names.emplace_back(name);
  }
  return names;
}

/// Code generation as a pass, which does not change the family.
graph::Pass kernels_pass(const KernelFamily& family, KernelProvider& provider, const std::stop_token& stop) {
  return {.name = kernels_step,
          .what = "generates kernels for groups and operators",
          .tolerance = 1e-4,
          .run = [&family, &provider, stop](graph::Program& program, const graph::PassOptions&) {
            KernelFamily copy = family;
            return generate_kernels(program, provider, stop, &copy).kernels;
          }};
}

/// Inserts the pass "recompute" before the passes that replace operators with kernels or fuse them. Copies of pointwise
/// operators can then be fused with the operators that read their results.
void insert_recompute(std::vector<graph::Pass>& list, graph::RecomputeOptions options) {
  const auto place = std::find_if(list.begin(), list.end(), [](const auto& pass) {
    return pass.name == attention_kernels_step || pass.name == "onednn" || pass.name == "loops";
  });
  options.after.assign(place, list.end());
  list.insert(place, graph::recompute_pass(std::move(options)));
}

/// Programs between two barriers can be as small as one metric. Their peak is not what a user wants to reduce.
constexpr size_t smallest_reported_peak = 64 << 10;

void warn_of_missed_budget(const graph::RecomputeReport& report) {
  if (report.peak_before < smallest_reported_peak) return;
  log_warn("compile: memory_budget = ", report.budget, " cannot be met. It allows a peak of ",
           static_cast<size_t>(report.budget * static_cast<double>(report.peak_before)), " bytes of the original ",
           report.peak_before, " bytes, but the smallest reachable peak is ", report.peak_after,
           " bytes. This peak is used. Results of random operators, and values that your code still references after "
           "the call, are always kept. Set a larger memory_budget, or use smaller batches.");
}

/// Logs a warning if possible. After an out-of-memory error, even the message may fail.
void warn(const char* what, const std::exception& error) noexcept try {
  log_warn("compile: ", what, ": ", user_message(error));
} catch (...) {
}

/// The same memory without the guard that a region sets on its inputs while operators are pending.
c10::Storage unguarded(const c10::Storage& storage) {
  const auto let_go = [](void* held) { delete static_cast<c10::Storage*>(held); };
  void* const data = const_cast<void*>(storage.data());
  return {c10::Storage::use_byte_size_t(), storage.nbytes(),
          c10::DataPtr(data, new c10::Storage(storage), let_go, storage.device())};
}

}  // namespace

bool widens_bf16() {
  static const bool slow = !this_machine().has_fast_bf16();
  return slow;
}

/// Runs a program unchanged until there is a better one. After that, the original is used only for calls with other
/// tensors than the frozen ones.
class CpuBackend::Swapped : public graph::Executable {
 public:
  explicit Swapped(graph::Program program) : plain_(std::make_unique<graph::ProgramRunner>(std::move(program))) {}

  ~Swapped() override { delete next_.load(); }
  Swapped(const Swapped&) = delete;
  Swapped& operator=(const Swapped&) = delete;

  /// Params: frozen – for each input: null, or the storage that `better` requires
  void put(std::unique_ptr<graph::Executable> better, std::vector<c10::Storage> frozen) {
    delete next_.exchange(new Better{std::move(better), std::move(frozen)});
  }

  /// Called after put(), or when it is clear that there will be no better program.
  void settle() { settled_ = true; }
  bool settled() const { return settled_; }
  /// Called before settle() if the program runs unchanged, because a better one is not expected to be faster.
  void stay_plain() { worthwhile_ = false; }
  bool is_worthwhile() const override { return worthwhile_; }

  void run(std::span<c10::Storage> inputs, std::span<const c10::IValue> numbers,
           std::span<c10::Storage> outputs) override {
    take_over();
    graph::Executable& now = better_ && is_for(inputs) ? *better_ : *plain_;
    now.run(inputs, numbers, outputs);
  }

 private:
  struct Better {
    std::unique_ptr<graph::Executable> executable;
    std::vector<c10::Storage> frozen;
  };

  void take_over() {
    const std::unique_ptr<Better> next(next_.exchange(nullptr));
    if (!next) return;
    better_ = std::move(next->executable);
    frozen_ = std::move(next->frozen);
    const bool always = std::none_of(frozen_.begin(), frozen_.end(), [](const auto& one) { return bool(one); });
    if (always) plain_.reset();
  }

  bool is_for(std::span<const c10::Storage> inputs) const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const c10::Storage& frozen = frozen_[i];
      if (frozen && frozen.unsafeGetStorageImpl() != inputs[i].unsafeGetStorageImpl()) return false;
    }
    return true;
  }

  std::unique_ptr<graph::Executable> plain_, better_;
  std::vector<c10::Storage> frozen_;     // changes together with better_, before the first call that compares them
  std::atomic<Better*> next_ = nullptr;  // not a mutex, because a child of fork() could find it locked
  std::atomic<bool> settled_ = false, worthwhile_ = true;
};

/// The state that a back end's thread shares with callers.
struct CpuBackend::Queue {
  const int process = ::getpid();
  std::deque<Job> jobs BELLOWS_GUARDED_BY(process_mutex());  ///< the worker is compiling the first one
  SharedConstants constants;                                 ///< used by the worker, like `families`
  ProgramFamilies families;
  int64_t programs BELLOWS_GUARDED_BY(process_mutex()) = 0, compiled BELLOWS_GUARDED_BY(process_mutex()) = 0;
  std::vector<std::string> reports BELLOWS_GUARDED_BY(process_mutex());
  /// Exists while there are jobs; last member, so that it ends before the members that it uses
  std::unique_ptr<std::jthread> worker BELLOWS_GUARDED_BY(process_mutex());
};

CpuBackend::CpuBackend(BackendOptions options)
    : options_(std::move(options)),
      passes_(cpu_passes(options_)),
      settings_(PassSettings::from_environment(pass_names(options_))),
      queue_(std::make_unique<Queue>()) {
  watch_forks();
  static std::atomic<bool> warned = false;
  if (!kernels::can_steal_work() && !warned.exchange(true))
    log_warn(
        "compile: the threads of compiled functions can use only one core, because this process is bound to it. Unset "
        "OMP_PROC_BIND, OMP_PLACES and GOMP_CPU_AFFINITY.");
  TORCH_CHECK_VALUE(!options_.exact || !options_.autocast,
                    "compile: exact and autocast cannot be combined, because lower precision changes results.");
  TORCH_CHECK_VALUE(options_.memory_budget > 0 && options_.memory_budget <= 1,
                    "compile: memory_budget must be larger than 0 and at most 1, got ", options_.memory_budget,
                    ". It is a fraction of the peak memory without recomputation. Use 1 for no recomputation.");
}
CpuBackend::~CpuBackend() {
  if (queue_->process != ::getpid()) static_cast<void>(queue_.release());
}

// A child of fork() has no other threads. The rest of the worker cannot be joined there, and its job may be incomplete.
CpuBackend::Queue& CpuBackend::own_queue() const {
  if (queue_->process != ::getpid()) {
    auto fresh = std::make_unique<Queue>();
    static_cast<void>(queue_.release());
    queue_ = std::move(fresh);
  }
  return *queue_;
}

std::shared_ptr<graph::Executable> CpuBackend::prepare(graph::Program program, std::span<const c10::Storage> inputs) {
  const auto executable = std::make_shared<Swapped>(program);
  Job job{executable, std::move(program), graph::are_frozen(inputs, options_.frozen), {}, {}, std::stop_source()};
  for (size_t i = 0; i < inputs.size(); ++i) {
    job.inputs.push_back(job.frozen[i] ? inputs[i] : c10::Storage());
    job.seen.push_back(job.frozen[i] ? unguarded(inputs[i]) : c10::Storage());
  }
  static std::atomic<bool> warned = false;
  std::stop_source cancel = job.cancel;
  try {
    if (settings_.bisect) job.copies = copies_of(inputs);
    enqueue(std::move(job));
    if (!options_.background) wait_for(*executable, cancel);
  } catch (const std::exception& error) {
    if (!warned.exchange(true)) warn("cannot optimize programs; they run as recorded", error);
  }
  return executable;
}

// After a stop request, the compiler gets some more time: with its program, the results of this call are bit-identical to
// those of a run that is not stopped.
void CpuBackend::wait_for(const Swapped& executable, std::stop_source& cancel) {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> last;
  for (LongWait wait("the compiler of a compiled function"); !executable.settled(); wait.note()) {
    if (stop_requested() && !last) last = Clock::now() + longest_after_stop;
    if (last && Clock::now() > *last && cancel.request_stop())
      log_warn(
          "compile: stopped while the compiler runs. The operators run without a compiled program, so their results "
          "differ from those of a run that is not stopped.");
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
}

void CpuBackend::enqueue(Job job) {
  const MutexLock lock(process_mutex());
  Queue& queue = own_queue();
  queue.jobs.push_back(std::move(job));
  if (queue.jobs.size() > 1) return;
  // A previous thread has ended, or will end without locking the mutex.
  try {
    const auto run = [this](const std::stop_token& stop) { work(stop); };
    queue.worker = std::make_unique<std::jthread>(start_thread<std::jthread>("compile", run));
  } catch (...) {
    queue.jobs.clear();
    throw;
  }
}

bool CpuBackend::ready() const {
  const MutexLock lock(process_mutex());
  return own_queue().jobs.empty();
}

std::string CpuBackend::to_text() const {
  const MutexLock lock(process_mutex());
  const Queue& queue = own_queue();
  std::string text;
  if (queue.programs > 0)
    text =
        c10::str("programs: ", queue.programs, ", ", queue.compiled, " of them needed the compiler; the others have ",
                 "the operators of an earlier program, and other sizes\n");
  for (const std::string& report : queue.reports) text += report;
  if (!queue.jobs.empty()) text += c10::str("compiling: ", queue.jobs.size(), " programs\n");
  return text;
}

// The thread ends when no jobs are left, and with it its team of OpenMP threads. libgomp counts the threads of all
// teams. If they exceed the number of cores, each thread sleeps between two parallel regions. This would cost every
// operator of the process 50 to 100 µs.
void CpuBackend::work(const std::stop_token& stop) {
  for (;;) {
    const std::shared_ptr<Swapped> made = make_first(stop);
    bool ended = false;
    {
      const MutexLock lock(process_mutex());
      queue_->jobs.pop_front();
      ended = queue_->jobs.empty() || stop.stop_requested();
    }
    if (made) made->settle();  // last, so that ready() is true when prepare() returns
    if (ended) return;
  }
}

std::shared_ptr<CpuBackend::Swapped> CpuBackend::make_first(const std::stop_token& stop) {
  const auto first = [this]() -> Job& {
    const MutexLock lock(process_mutex());
    return queue_->jobs.front();
  };
  Job& job = first();
  static std::atomic<bool> warned = false;
  const std::stop_callback also(stop, [cancel = job.cancel]() mutable { cancel.request_stop(); });
  try {
    // Primitives of oneDNN divide their work when they are created, so this needs the threads of the later calls.
    if (!job.executable.expired()) kernels::with_work_stealing([&] { make(job); });
  } catch (const std::exception& error) {
    if (!job.cancel.stop_requested() && !warned.exchange(true))
      warn("optimizing a program failed; it runs as recorded", error);
  }
  std::shared_ptr<Swapped> made = job.executable.lock();
  job = {};  // releases its tensors without locking the mutex
  return made;
}

void CpuBackend::make(Job& job) {
  graph::Program& program = job.program;
  const graph::ConstantStoreScope scope(options_.constants.get());
  const ProgramWork recorded = ProgramWork::of(program);
  std::string report = c10::str("program of ", recorded.instructions, " operators:\n");
  KernelFamily& family = queue_->families.of(program, report);
  const std::vector<std::string> skipped = skipped_passes(job, family, report);
  if (contains(skipped, "")) return add_report(std::move(report));
  graph::functionalize(program);
  graph::Remaining left = graph::freeze_inputs(program, job.seen, job.frozen);
  for (const int input : left.inputs) job.inputs[input] = {};  // may differ in each call
  report += optimize(program, skipped);
  const bool may_stay_plain = !options_.always && !options_.exact && !options_.autocast && options_.frozen.empty() &&
                              options_.memory_budget == 1;
  if (const double gain = expected_gain_us(recorded, ProgramWork::of(program)); may_stay_plain && gain <= 0) {
    if (const auto executable = job.executable.lock()) executable->stay_plain();
    return add_report(c10::str(report, "  not compiled: a call is expected to take ", std::lround(-gain),
                               " us longer than eager code\n"));
  }
  if (!contains(skipped, kernels_step)) {
    const KernelReport kernels = generate_kernels(program, kernel_provider(), job.cancel.get_token(), &family);
    report += kernels.to_text();
    count_program(kernels.compiled > 0);
  }
  const std::vector<graph::Pass> behind_kernels{graph::branches_pass()};
  report += graph::run_passes(program, pass_options(), passes_without(skipped, behind_kernels)).to_text();
  report += names_of(program);
  if (const size_t bytes = queue_->constants.share(program, job.seen))
    report += c10::str("constants: ", bytes / 1'000'000, " MB shared with other programs\n");
  if (!program.constants.empty()) trim_heap();  // frees memory of temporary packed copies
  auto better = std::make_unique<graph::FrozenRunner>(std::move(program), std::move(left));
  const auto executable = job.executable.lock();
  if (!executable) return;
  executable->put(std::move(better), std::move(job.inputs));
  add_report(std::move(report));
}

KernelProvider& CpuBackend::kernel_provider() const {
  return options_.kernels ? *options_.kernels : kernel_cache();
}

void CpuBackend::count_program(bool compiled) const {
  const MutexLock lock(process_mutex());
  ++queue_->programs;
  queue_->compiled += compiled;
}

std::vector<std::string> CpuBackend::skipped_passes(const Job& job, const KernelFamily& kernels,
                                                    std::string& report) const {
  std::vector<std::string> skipped = settings_.without;
  const auto needs_code = [&] {
    skipped.insert(skipped.end(), {kernels_step, "buffers", "loops", "updates", "reuse"});
  };
  if (options_.exact || contains(skipped, kernels_step) || !kernel_provider().can_compile()) needs_code();
  if (!settings_.bisect) return skipped;
  std::vector<graph::Pass> all = passes_;
  if (options_.memory_budget < 1) insert_recompute(all, {.budget = options_.memory_budget});
  all.insert(all.end(), {kernels_pass(kernels, kernel_provider(), job.cancel.get_token()), graph::branches_pass()});
  const auto start = [&](graph::Program& program) {
    graph::functionalize(program);
    return graph::freeze_inputs(program, job.seen, job.frozen);
  };
  for (const WrongPass& wrong : find_wrong_passes({.recorded = job.program,
                                .inputs = job.copies,
                                .start = start,
                                .passes = passes_without(skipped, all),
                                .options = pass_options(),
                                .stop = job.cancel.get_token()})) {
    log_error("compile: ", wrong.text);
    report += c10::str("  wrong: ", wrong.text, "\n");
    skipped.push_back(wrong.name);
    if (wrong.name == kernels_step) needs_code();
  }
  return skipped;
}

graph::PassOptions CpuBackend::pass_options() const {
  return {.exact = options_.exact, .can_generate = is_worth_generating, .batch_invariant = options_.batch_invariant};
}

std::string CpuBackend::optimize(graph::Program& program, const std::vector<std::string>& skipped) const {
  std::vector<graph::Pass> list = passes_without(skipped, passes_);
  if (options_.memory_budget == 1 || contains(skipped, recompute_step))
    return graph::run_passes(program, pass_options(), list).to_text();
  std::string recomputed;
  const auto report = [&](const graph::RecomputeReport& made) {
    if (!made.is_met() && !warned_of_budget_.exchange(true)) warn_of_missed_budget(made);
    recomputed = made.to_text();
  };
  insert_recompute(list, {.budget = options_.memory_budget, .report = report});
  return graph::run_passes(program, pass_options(), list).to_text() + recomputed;
}

void CpuBackend::add_report(std::string report) const {
  const MutexLock lock(process_mutex());
  std::vector<std::string>& reports = queue_->reports;
  if (reports.size() == kept_reports) reports.erase(reports.begin());
  reports.push_back(std::move(report));
}

}  // namespace bellows::compile_detail
