// Compiled and plain steps while another process uses one of the cores.
#include <ATen/ops/allclose.h>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "bellows/compile/compile.h"
#include "bench/compile/tasks.h"
#include "bench/support/bench.h"

namespace bellows::bench {
namespace {

/// A process that computes without end while it is switched on. It ends with this process.
class BusyProcess {
 public:
  BusyProcess() {
    pid_ = fork();
    TORCH_CHECK(pid_ >= 0, "busy: cannot start a process.");
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (volatile uint64_t i = 0;;) {
        const uint64_t next = i + 1;
        i = next;
      }
    }
    set(false);
  }
  ~BusyProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  BusyProcess(const BusyProcess&) = delete;
  BusyProcess& operator=(const BusyProcess&) = delete;

  void set(bool on) const { kill(pid_, on ? SIGCONT : SIGSTOP); }

 private:
  pid_t pid_ = -1;
};

/// The same contestant while the process is busy.
Contestant beside(const BusyProcess& busy, Contestant quiet) {
  return {quiet.name + ", busy", [&busy, run = std::move(quiet.run)](int64_t n) {
            busy.set(true);
            run(1);  // the scheduler has moved the processes before the clock starts
            const double seconds = run(n);
            busy.set(false);
            return seconds;
          }};
}

void measure(const Task& task, const BusyProcess& busy, const Options& options, Report& report) {
  std::vector<at::Tensor> weights;
  const std::function<at::Tensor()> plain = function_of(task, weights);
  const auto compiled = compile(function_of(task, weights), {.frozen = weights});
  bool equal = true;
  for (int call = 0; call < 3; ++call)
    equal = at::allclose(compiled(), plain(), task.tolerance, task.tolerance) && equal;
  const Contestant ours = timed_contestant("compiled", compiled), eager = timed_contestant("plain", plain);
  const Comparison all = compare({ours, eager, beside(busy, ours), beside(busy, eager)},
                                 {.window_s = options.quick ? 0.3 : 1, .windows = options.quick ? 5 : 11});
  const auto sides = [&](size_t first) { return Comparison{{all.sides[first], all.sides[first + 1]}, all.units}; };
  report.add(time_row(task.about, "time per call", "ms", sides(0), equal));
  Row row = time_row(task.about + ", one other busy process", "time per call", "ms", sides(2), equal);
  row.note = c10::str("relative to the quiet machine: compiled ", all.sides[2].seconds() / all.sides[0].seconds(),
                      "x, plain ", all.sides[3].seconds() / all.sides[1].seconds(), "x");
  report.add(std::move(row));
}

int run(const Options& options) {
  const BusyProcess busy;  // before other threads exist
  Report report("busy", options);
  const std::string& chosen = options.extra.at("task");
  for (const char* name : {"step-resnet18", "step-bert", "step-unet"}) {
    if (chosen.empty() || chosen == name) measure(task_named(name), busy, options, report);
  }
  return report.finish();
}

}  // namespace
}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Times compiled and plain training steps on a quiet machine, and while one other process uses a core.\n"
      "--task: one of step-resnet18, step-bert and step-unet.",
      run, {{"task", ""}});
}
