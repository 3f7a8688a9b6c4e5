#include "bench/compile/tools.h"

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <thread>

#include "bellows/compile.h"
#include "bellows/core/error.h"
#include "bellows/system/file.h"
#include "bench/compile/own_cache.h"
#include "bench/compile/table.h"
#include "bench/compile/tasks.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {
namespace {

namespace fs = std::filesystem;
using Call = std::function<at::Tensor()>;

constexpr double slowest_tool_s = 900, least_tool_s = 6;

/// How long a tool of Python may take until it is ready. With --quick the windows need some of what is left.
double time_for_tools_s() {
  return std::min(slowest_tool_s, run_deadline().left_s() - 24);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  double largest = 0, difference = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(b[i]));
    difference = std::isfinite(a[i]) ? std::max(difference, std::abs(a[i] - b[i])) : INFINITY;
  }
  return a.size() == b.size() && difference <= tolerance * largest;
}

/// How long it took until nothing more was being made, and the calls that had ended by then.
struct Readiness {
  double seconds = 0;
  int64_t calls = 0;
};

/// Calls until nothing more is being made. The first call is recorded, of steps also the second, and the next one asks for what is to be made.
template <class Compiled>
Readiness call_until_ready(Compiled& compiled, bool is_step) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<double> last_seen_making = 0;
  const std::jthread watch([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (!compiled.ready()) last_seen_making = seconds_since(start);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  const size_t asking = is_step ? 3 : 2;
  std::vector<double> ends;
  while (ends.size() <= asking || (!compiled.ready() && seconds_since(start) < 300 && !run_deadline().over())) {
    compiled();
    ends.push_back(seconds_since(start));
  }
  const double seconds = std::max(ends[asking - 1], last_seen_making.load());
  return {seconds, std::count_if(ends.begin(), ends.end(), [&](double end) { return end <= seconds; })};
}

/// One task, all who do it, and what each needed until it was ready.
class Contest {
 public:
  Contest(const Task& task, const Options& options) : task_(task), options_(options) {}

  Row run() {
    add_ours();
    if (!options_.peer_python.empty()) {
      for (const std::string& tool : task_.tools) {
        if (is_wanted(tool)) add_tool(tool);
      }
    }
    const double window_s = std::stod(options_.extra.at("seconds"));
    const Limit limit = limit_of(task_);
    Row row = time_row(task_.about, "time per call", "ms",
                       compare(sides_, {.window_s = options_.quick ? std::min(window_s, 0.5) : window_s,
                                        .windows = options_.quick ? 5 : 11,
                                        .budget_s = options_.quick ? 10 : 1e9}),
                       equal_);
    row.limit = 1e3 * limit.seconds;
    char text[96];
    std::snprintf(text, sizeof text, "limit: %.1f GFLOP, %.0f MB; ready after: ", limit.flops / 1e9, limit.bytes / 1e6);
    row.note = text + notes_;
    return row;
  }

 private:
  bool is_wanted(const std::string& tool) const {
    const std::string& wanted = options_.extra.at("tools");
    return wanted == "all" || ("," + wanted + ",").find("," + tool + ",") != std::string::npos;
  }

  void add_ours() {
    std::vector<at::Tensor> weights;
    const Call plain = function_of(task_, weights);
    expected_ = checked_values(task_, plain);
    for (const char* cache : {"an empty kernel cache:", "a filled kernel cache:"}) {
      if (options_.quick) break;  // it makes all of them twice more
      PeerProcess alone({"/proc/self/exe", "--ready-of", task_.name});
      const std::vector<double> answer = alone.ask_numbers("ready", 400);
      note("ours with ", cache, " %.1f s, %.2f s more than plain calls", answer.at(0), answer.at(0) - answer.at(1));
      if (answer.size() > 2) note("after a change of the length:", "", " %.2f s", answer.at(2));
    }
    const Call bare = function_of(task_, weights);
    auto compiled = compile(bare, {.frozen = task_.is_step() ? std::vector<at::Tensor>{} : weights});
    const std::vector<double> first = checked_values(task_, compiled);
    check_values("ours, first calls", first);
    call_until_ready(compiled, task_.is_step());
    if (!task_.is_step()) check_values("ours, when ready", checked_values(task_, compiled));
    sides_.push_back(timed_contestant("ours, compiled", compiled));
    sides_.push_back(timed_contestant("ours, plain", plain));
  }

  /// In a process of its own: what fails there takes nothing else down.
  void add_tool(const std::string& tool) {
    if (time_for_tools_s() < least_tool_s) {
      notes_ += tool + " skipped for lack of time; ";
      return;
    }
    try {
      auto peer = std::make_shared<PeerProcess>(
          std::vector<std::string>{options_.peer_python, source_dir() + "/bench/peers/compile_tools.py"});
      if (tool == "aoti") return add_package(*peer);
      const std::vector<double> answer = peer->ask_numbers("prepare " + task_.name + " " + tool, time_for_tools_s());
      note(tool, "", " %.1f s", answer.front());
      check_values(tool, {answer.begin() + 1, answer.end()});
      sides_.push_back({"Python, " + tool, [peer](int64_t n) { return peer->run(n); }});
    } catch (const std::exception& error) {
      notes_ += tool + " does not support this task (" + user_message(error) + ")  ";
    }
  }

  /// Compiled by Python, loaded and run here.
  void add_package(PeerProcess& peer) {
    const std::string file = (fs::temp_directory_path() / ("bench_compile_" + task_.name + ".pt2")).string();
    note("AOTInductor", "", " %.1f s",
         peer.ask_numbers("package " + task_.name + " " + file, time_for_tools_s()).front());
    const auto loader = std::make_shared<torch::inductor::AOTIModelPackageLoader>(file);
    const Call call = [loader, x = task_.input()] {
      const c10::InferenceMode no_autograd;
      return loader->run({x}).front();
    };
    fs::remove(file);
    check_values("AOTInductor", checked_values(task_, call));
    sides_.push_back(timed_contestant("AOTInductor, C++ loader", call));
  }

  void check_values(const std::string& who, const std::vector<double>& values) {
    if (close(values, expected_, task_.tolerance)) return;
    equal_ = false;
    notes_ += "(" + who + ": different results) ";
  }

  template <class... Numbers>
  void note(const std::string& who, const std::string& how, const char* format, Numbers... numbers) {
    char text[64];
    std::snprintf(text, sizeof text, format, numbers...);
    notes_ += who + how + text + "; ";
  }

  const Task& task_;
  const Options& options_;
  std::vector<Contestant> sides_;
  std::vector<double> expected_;
  std::string notes_;
  bool equal_ = true;
};

/// Seconds until a forward pass that was ready for texts of one length is ready for those of another.
double seconds_for_another_length(const Task& task) {
  std::vector<at::Tensor> weights;
  const auto bare = forward_of(task, weights);
  at::Tensor text = task.input();
  auto compiled = compile([&] { return bare(text); }, {.frozen = weights});
  call_until_ready(compiled, false);
  text = text.slice(1, 0, text.size(1) - 5).contiguous();
  return call_until_ready(compiled, false).seconds;
}

Row failed_row(const Task& task, const std::exception& error) {
  return {.work = task.about, .metric = "time per call", .unit = "ms", .note = "failed: " + user_message(error)};
}

}  // namespace

void add_tool_rows(Report& report, const Options& options) {
  const std::string only = options.extra.at("task");
  const OwnCache cache;
  std::vector<Row> rows;
  for (const Task& task : only.empty() ? all_tasks() : std::vector<Task>{task_named(only)}) {
    if (only.empty() && task.bf16 && options.extra.at("bf16") != "1") continue;
    if (!report.has_time_for(task.about)) continue;
    try {
      rows.push_back(Contest(task, options).run());
    } catch (const std::exception& error) {
      rows.push_back(failed_row(task, error));
    }
    report.add(rows.back());
    if (const std::string& file = options.extra.at("markdown"); !file.empty())
      write_text_file(file, markdown_table(rows));  // whatever comes
  }
}

int serve_ready(const std::string& task_name) {
  const Task task = task_named(task_name);
  std::vector<at::Tensor> weights;
  const Call bare = function_of(task, weights);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    auto compiled = compile(bare, {.frozen = task.is_step() ? std::vector<at::Tensor>{} : weights});
    const Readiness ready = call_until_ready(compiled, task.is_step());
    std::cout << ready.seconds;
    bare();
    const auto plain_start = std::chrono::steady_clock::now();
    for (int64_t call = 0; call < ready.calls; ++call) bare();
    std::cout << " " << seconds_since(plain_start);
    if (task.is_bert() && !task.is_step()) std::cout << " " << seconds_for_another_length(task);
    std::cout << std::endl;
  }
  return 0;
}

}  // namespace bellows::bench
