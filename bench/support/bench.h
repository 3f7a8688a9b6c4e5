#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bellows/core/stats.h"

/// What the benchmark programs share. They may print; the library may not.
namespace bellows::bench {

/// When something has to end. Threads: any.
class Deadline {
 public:
  using Clock = std::function<double()>;  ///< seconds, from whenever
  /// Never.
  Deadline() = default;
  /// So many seconds from now. Params: clock – for tests
  explicit Deadline(double seconds, Clock clock = steady_seconds);

  /// Not below 0; infinity: there is no end.
  double left_s() const;
  bool over() const { return left_s() <= 0; }

 private:
  static double steady_seconds();
  Clock clock_;
  double end_ = std::numeric_limits<double>::infinity();
};

/// When this run has to end: of --quick; else never.
Deadline run_deadline();

/// The flags that every benchmark program understands.
struct Options {
  bool quick = false;                        ///< end within 60 s
  std::string json;                          ///< file for the rows; empty: none
  std::string peer_python;                   ///< interpreter of the Python peers; empty: peers are left out
  std::string data;                          ///< folder of the digits; default: data/digits of the checkout
  std::map<std::string, std::string> extra;  ///< further `--key VALUE` pairs that the program asked for
};

/// Parses the flags; `--help` and mistakes end the program with 0 and 2. Restarts the program once with
/// GOMP_SPINCOUNT=20000 if the variable is not set: libgomp reads it before main, and its default spinning makes
/// timings on a shared machine useless. Params: about – one paragraph for --help
///         extra – keys of further flags, with their default values
Options parse_options(int argc, char** argv, std::string_view about, std::map<std::string, std::string> extra = {});

/// What main of a benchmark does: parses the flags, runs the program, turns an exception into a message and exit code 1.
/// A run with --quick that did not end with its deadline is stopped a little later: rows so far are printed and written.
/// Params: about, extra – as parse_options
int bench_main(int argc, char** argv, std::string_view about, const std::function<int(const Options&)>& program,
               std::map<std::string, std::string> extra = {});

/// One side of a comparison: does `n` units of the work (steps, samples, calls) and returns the seconds that they took.
struct Contestant {
  std::string name;
  std::function<double(int64_t n)> run;
};

/// How much to measure. Each window is one call of a contestant; windows of all sides take turns.
struct Plan {
  int64_t units = 0;      ///< units a window; 0: as many as fit into `window_s` on the first side
  double window_s = 0.5;  ///< length of a window when `units` is 0
  int windows = 11;       ///< timed windows a side
  int warmup = 1;         ///< windows a side before, thrown away
  double budget_s = 1e9;  ///< no new round of windows starts later than this, once there are two
  /// Called before each round: measures the limit in the same minutes, which differ on shared machines.
  std::function<void()> before_round{};
  Deadline deadline = run_deadline();  ///< as budget_s
};

/// The timings of one side, in seconds per unit.
struct Side {
  std::string name;
  std::vector<double> windows;
  double seconds() const { return median(windows); }
  /// Half the distance between the quartiles over the median.
  double spread() const;
};

/// Sides in the order they were given. By convention the first is ours.
struct Comparison {
  std::vector<Side> sides;
  int64_t units = 0;

  const Side& ours() const { return sides.front(); }
  /// The fastest of the other sides. Throws: c10::ValueError – there is none
  const Side& best_peer() const;
  /// Time of `peer` over time of ours, window by window: above 1, ours is faster.
  RatioInterval speedup_over(const Side& peer) const { return paired_ratio(peer.windows, ours().windows); }
};

/// Times the sides in turns: A B C, B C A, … so that drift of the machine hits all alike.
/// Throws: c10::ValueError – fewer than two windows, or no side
Comparison compare(const std::vector<Contestant>& sides, const Plan& plan);

/// One result, as it stands in the JSON file.
struct Row {
  std::string work;    ///< "resnet18 step, batch 32, 64x64, fp32"
  std::string metric;  ///< "time per step"
  std::string unit;    ///< "ms"
  double ours = 0;
  std::vector<std::pair<std::string, double>> peers;
  double limit = std::numeric_limits<double>::quiet_NaN();  ///< what the hardware allows, same unit; NaN: not known
  double ratio_to_best_peer = std::numeric_limits<double>::quiet_NaN();  ///< above 1: ours is better; NaN: no peer
  bool equal = false;  ///< the results of all sides were compared and agree

  // Printed, and kept beside the rows in the file.
  RatioInterval interval{};   ///< of ratio_to_best_peer
  std::string best_peer{};    ///< the side that the ratio is to
  std::string note{};         ///< a line under the row: achieved share of the limit, why not equal
  std::vector<Side> sides{};  ///< all windows
};

/// A row about time per unit. Params: unit – "s", "ms", "us" or "ns"
Row time_row(std::string work, std::string metric, std::string unit, const Comparison& comparison, bool equal);
/// A row about units per second: `per_unit` samples (bytes, …) are in one unit of the comparison.
Row rate_row(std::string work, std::string metric, std::string unit, const Comparison& comparison, bool equal,
             double per_unit = 1);

/// A row about what a hook adds to a unit of work: windows with it less windows without it, one by one, by ranks. The
/// interval of the ratio is the widest that the two differences allow; an end that cannot be told from no time at all is
/// 0 or infinity. The limit is the work itself, without the hook.
/// Params: all – sides in this order: ours with the hook, ours without; and, where there are peers, theirs without, then
///         each of theirs with a hook; at least five windows
Row added_time_row(std::string work, std::string metric, const std::string& unit, const Comparison& all, bool equal);

/// Collects rows, prints each as it comes in at 80 columns, writes `{"bench", "machine", "rows", "details"}` with each if a
/// file was asked for.
class Report {
 public:
  Report(std::string name, Options options, Deadline deadline = run_deadline());
  void add(Row row);
  /// Whether the time left is as long as the longest row so far took; the first row always has time. A row that has none is
  /// named at the end: the rows that show the most come first.
  bool has_time_for(const std::string& row);
  /// Names what was left out. Returns the program's exit code: 0, or 1 if a row's results were not equal.
  int finish() const;

 private:
  void write_file() const;

  std::string name_;
  Options options_;
  Deadline deadline_;
  std::vector<Row> rows_;
  std::vector<std::string> left_out_;
  double last_left_s_ = 0, longest_row_s_ = 0;  ///< of the deadline
};

/// Bytes read and written a second, at most: the best of all the loops of streams.h, with as many threads as an operator
/// uses, over arrays that together have `working_set` bytes. Later calls measure again, and can only raise it.
/// Params: working_set – what the measured work touches: a part of it may lie in the caches
double memory_bytes_per_s(size_t working_set);
/// The same of arrays far larger than any cache.
double memory_bytes_per_s();

/// Floating-point operations a second, at most: the best of matrix products of several shapes and of convolutions. Later
/// calls measure again, and can only raise it.
double gemm_flops_per_s(c10::ScalarType dtype);

/// CPU, cores, features, memory, libtorch, threads, spin count, date: name and value, in order.
std::vector<std::pair<std::string, std::string>> machine_info();

/// Folder of a checkout this program was built from: for peers' scripts.
std::string source_dir();

}  // namespace bellows::bench
