// Training programs of the kind that tutorials contain: plain, compiled, and compiled by Python's torch.compile.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <memory>

#include "bellows/compile.h"
#include "bellows/core/error.h"
#include "bellows/inspect/op_counter.h"
#include "bench/compile/ordinary_programs.h"
#include "bench/compile/own_cache.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {
namespace {

constexpr uint64_t seed = 7;
constexpr int checked_steps = 5, warm_up_steps = 4;

/// Params: list – words with commas between them, or "all"
bool contains(const std::string& list, const std::string& word) {
  return list == "all" || ("," + list + ",").find("," + word + ",") != std::string::npos;
}

CompileOptions options_for(bool bf16) {
  CompileOptions options;
  if (bf16) options.autocast = at::kBFloat16;
  return options;
}

/// One program that trains, plain or compiled, with the losses of its first steps.
struct TrainedSide {
  TrainingRun run;
  std::vector<double> losses;
  double moved = 0;  ///< distance of the parameters from where they began
};

at::Tensor all_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : parameters) flat.push_back(parameter.detach().flatten().to(at::kDouble));
  return torch::cat(flat);
}

TrainedSide first_steps(TrainingRun run) {
  TrainedSide side{.run = std::move(run), .losses = {}};
  const at::Tensor before = all_of(side.run.parameters);
  torch::manual_seed(seed + 1);  // dropout draws from it
  for (int step = 0; step < checked_steps; ++step) side.losses.push_back(side.run.step().item<double>());
  side.moved = (all_of(side.run.parameters) - before).norm().item<double>();
  return side;
}

/// The largest relative difference of a loss, and the distance of the parameters relative to the way that they moved.
struct Difference {
  double loss = 0, parameters = 0;

  static Difference between(const TrainedSide& ours, const TrainedSide& plain) {
    Difference result{largest(ours.losses, plain.losses)};
    const at::Tensor distance = all_of(ours.run.parameters) - all_of(plain.run.parameters);
    result.parameters = distance.norm().item<double>() / plain.moved;
    return result;
  }
  static double largest(const std::vector<double>& ours, const std::vector<double>& theirs) {
    double result = ours.size() == theirs.size() ? 0 : INFINITY;
    for (size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
      const double difference = std::abs(ours[i] - theirs[i]) / std::abs(theirs[i]);
      result = std::isfinite(difference) ? std::max(result, difference) : INFINITY;
    }
    return result;
  }
  bool within(double tolerance) const { return loss <= tolerance && parameters <= 20 * tolerance; }
};

/// A program in one precision, and all sides that run it.
class Race {
 public:
  Race(const OrdinaryProgram& program, bool bf16, const Options& options)
      : program_(program), bf16_(bf16), options_(options) {}

  Row run() {
    const TrainedSide plain = first_steps(program_.make(seed, bf16_));
    TrainingRun bare = program_.make(seed, false);
    const auto compiled = compile(bare.step, options_for(bf16_));
    bare.step = compiled;
    const TrainedSide ours = first_steps(std::move(bare));
    const Difference difference = Difference::between(ours, plain);
    const bool equal = difference.within(bf16_ ? program_.bf16_tolerance : program_.tolerance);
    note("losses differ by %.1e, parameters by %.1e", difference.loss, difference.parameters);
    sides_.push_back(timed_contestant("ours, compiled", ours.run.step));
    sides_.push_back(timed_contestant("ours, plain", plain.run.step));
    add_peers(plain.losses);
    for (int step = 0; step < warm_up_steps; ++step) ours.run.step();
    Row row = time_row(program_.about + (bf16_ ? ", bf16" : ""), "time per step", "ms",
                       compare(sides_, {.window_s = std::stod(options_.extra.at("seconds")),
                                        .windows = std::stoi(options_.extra.at("rounds"))}),
                       equal && peers_equal_);
    const graph::Explanation explained = compiled.explain();
    if (explained.plain_calls > 0)
      note("%ld of %ld calls ran plain", static_cast<long>(explained.plain_calls), static_cast<long>(explained.calls));
    row.note = notes_;
    return row;
  }

 private:
  void add_peers(const std::vector<double>& losses) {
    const std::string& tools = options_.extra.at("tools");
    if (options_.peer_python.empty()) return;
    for (const std::string tool : {"eager", "compile"}) {
      if (!contains(tools, tool)) continue;
      try {
        add_peer(tool, losses);
      } catch (const std::exception& error) {
        notes_ += "Python, " + tool + " failed (" + user_message(error) + "); ";
      }
    }
  }

  /// Equal seeds give equal weights, data and masks in Python. torch.compile draws masks with a generator of its own,
  /// so only eager losses are compared.
  void add_peer(const std::string& tool, const std::vector<double>& losses) {
    const auto peer = std::make_shared<PeerProcess>(
        std::vector<std::string>{options_.peer_python, source_dir() + "/bench/peers/ordinary_programs.py"});
    const std::string line = c10::str("prepare ", program_.name, " ", tool, bf16_ ? " bf16 " : " fp32 ", seed);
    const std::vector<double> answer = peer->ask_numbers(line, 900);
    if (answer.front() < 0) return;  // a program that is not written in Python
    const double difference = Difference::largest({answer.begin() + 1, answer.end()}, losses);
    note("Python's %s: ready after %.1f s, losses differ by %.1e", tool.c_str(), answer[0], difference);
    if (tool == "eager" && difference > (bf16_ ? program_.bf16_tolerance : program_.tolerance)) peers_equal_ = false;
    sides_.push_back({"Python, " + tool, [peer](int64_t n) { return peer->run(n); }});
  }

  template <class... Values>
  void note(const char* format, Values... values) {
    char text[128];
    std::snprintf(text, sizeof text, format, values...);
    notes_ += std::string(text) + "; ";
  }

  const OrdinaryProgram& program_;
  const bool bf16_;
  const Options& options_;
  std::vector<Contestant> sides_;
  std::string notes_;
  bool peers_equal_ = true;
};

/// The ratios of the compiled step to one of the other sides, by program.
class Ratios {
 public:
  void add(const OrdinaryProgram& program, const Row& row, const std::string& side) {
    for (const auto& [name, time] : row.peers) {
      if (name == side) ratios_.emplace_back(time / row.ours, program.name);
    }
  }
  /// Adds a row with the geometric mean of the ratios. It adds none if there are no ratios.
  void add_summary(Report& report, const std::string& side, const std::string& dtype) const {
    if (ratios_.empty()) return;
    double logs = 0;
    std::vector<double> values;
    for (const auto& [ratio, name] : ratios_) {
      logs += std::log(ratio);
      values.push_back(ratio);
    }
    const auto& [worst, name] = *std::min_element(ratios_.begin(), ratios_.end());
    const double mean = std::exp(logs / static_cast<double>(values.size()));
    char text[160];
    std::snprintf(text, sizeof text, "median %.2f, worst %.2f (%s)", median(values), worst, name.c_str());
    report.add({.work = c10::str("all ", values.size(), " programs, ", dtype),
                .metric = "speedup over " + side + ", geometric mean",
                .unit = "x",
                .ours = mean,
                .peers = {},
                .equal = true,
                .note = text});
  }

 private:
  std::vector<std::pair<double, std::string>> ratios_;
};

/// Prints the operators that took the most time in five steps. In a compiled step, they run as programs, so their own
/// times are not known.
void print_operators(const std::function<at::Tensor()>& step) {
  const inspect::OpCounter counter;
  for (int i = 0; i < checked_steps; ++i) step();
  std::vector<inspect::OpRow> rows = counter.report().by_operator();
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.count.host_us > b.count.host_us; });
  double total = 0;
  for (const auto& row : rows) total += row.count.host_us;
  for (size_t i = 0; i < std::min<size_t>(rows.size(), 12); ++i) {
    const inspect::OpCount& count = rows[i].count;
    std::printf("  %5.1f %%  %10.1f us x %-5ld %s%s\n", 100 * count.host_us / total,
                count.host_us / static_cast<double>(count.calls), static_cast<long>(count.calls / checked_steps),
                rows[i].op.c_str(), rows[i].backward ? ", backward" : "");
  }
}

/// Runs one side alone, for a profiler, and prints its operators or what was compiled.
int run_alone(const OrdinaryProgram& program, bool bf16, const std::string& side, double seconds) {
  const bool is_plain = side == "plain";
  const TrainingRun run = program.make(seed, bf16 && is_plain);
  CompileOptions compile_options = options_for(bf16);
  compile_options.always = side == "always";
  const auto compiled = compile(run.step, compile_options);
  const std::function<at::Tensor()> step = is_plain ? run.step : std::function<at::Tensor()>(compiled);
  for (int i = 0; i < checked_steps + warm_up_steps; ++i) step();
  const std::clock_t start = std::clock();
  double steps = 0, time = 0;
  for (; time < seconds; ++steps) time += seconds_of([&] { step(); });
  const double processor = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  std::printf("%s, %s: %.4f ms per step, processor time %.4f ms, %.0f steps\n", program.name.c_str(), side.c_str(),
              1e3 * time / steps, 1e3 * processor / steps, steps);
  if (is_plain)
    print_operators(step);
  else
    std::cout << compiled.explain().to_text() << std::endl;
  return 0;
}

std::vector<OrdinaryProgram> chosen_programs(const std::string& only) {
  std::vector<OrdinaryProgram> chosen;
  std::string names;
  for (OrdinaryProgram& program : ordinary_programs()) {
    names += (names.empty() ? "" : ", ") + program.name;
    if (contains(only, program.name)) chosen.push_back(std::move(program));
  }
  TORCH_CHECK_VALUE(!chosen.empty(), "bench ordinary: no program has the name ", only, ". The programs are ", names,
                    ".");
  return chosen;
}

void run_precision(const std::vector<OrdinaryProgram>& programs, bool bf16, Report& report, const Options& options) {
  const std::vector<std::string> sides = {"ours, plain", "Python, eager", "Python, compile"};
  std::vector<Ratios> ratios(sides.size());
  for (const OrdinaryProgram& program : programs) {
    if ((bf16 && program.bf16_tolerance == 0) || !report.has_time_for(program.about)) continue;
    const Row row = Race(program, bf16, options).run();
    for (size_t i = 0; i < sides.size(); ++i) ratios[i].add(program, row, sides[i]);
    report.add(row);
  }
  for (size_t i = 0; i < sides.size(); ++i) ratios[i].add_summary(report, sides[i], bf16 ? "bf16" : "fp32");
}

int run(const Options& given) {
  Options options = given;
  if (options.quick) options.extra["rounds"] = "3", options.extra["seconds"] = "0.1", options.extra["tools"] = "none";
  if (const int threads = std::stoi(options.extra.at("threads")); threads > 0) at::set_num_threads(threads);
  const auto programs = chosen_programs(options.extra.at("only"));
  const std::string& dtypes = options.extra.at("dtypes");
  if (const std::string& side = options.extra.at("side"); !side.empty()) {
    return run_alone(programs.front(), contains(dtypes, "bf16"), side, std::stod(options.extra.at("seconds")));
  }
  const OwnCache cache;
  Report report("ordinary", options);
  if (contains(dtypes, "fp32")) run_precision(programs, false, report, options);
  if (contains(dtypes, "bf16")) run_precision(programs, true, report, options);
  return report.finish();
}

}  // namespace
}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  return bench_main(
      argc, argv,
      "Times training steps of programs of the kind that tutorials contain, at their own sizes: compiled, plain,\nand "
      "in Python with and without torch.compile. First the losses of five steps and the parameters after them\nare "
      "compared.\n--only A,B: only these programs. --dtypes: fp32, bf16 or both. --threads: threads of an operator; 0\n"
      "means the default. --rounds: windows per side. --seconds: length of a window in seconds. --tools: eager,\n"
      "compile, all or none of the Python sides. --side plain or --side compiled: run only this side of one program,\n"
      "for a profiler, and print its operators or what was compiled. --side always: the same "
      "with\nCompileOptions::always.",
      run,
      {{"only", "all"},
       {"dtypes", "fp32,bf16"},
       {"threads", "0"},
       {"rounds", "11"},
       {"seconds", "0.3"},
       {"tools", "all"},
       {"side", ""}});
}
