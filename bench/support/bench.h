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

/// Common code of the benchmark programs. They may print; the library may not.
namespace bellows::bench {

/// A point in time at which an activity must end.
/// Threads: any
class Deadline {
 public:
  using Clock = std::function<double()>;  ///< a clock in seconds with an arbitrary start
  /// A deadline that is never reached.
  Deadline() = default;
  /// A deadline after the given number of seconds.
  /// Params: clock – for tests
  explicit Deadline(double seconds, Clock clock = steady_seconds);

  /// Returns the remaining seconds, at least 0. Infinity means that there is no end.
  double left_s() const;
  bool over() const { return left_s() <= 0; }

 private:
  static double steady_seconds();
  Clock clock_;
  double end_ = std::numeric_limits<double>::infinity();
};

/// Returns the deadline of this run. Without --quick, it is never reached.
Deadline run_deadline();

/// The options of every benchmark program.
struct Options {
  bool quick = false;                        ///< end within 60 seconds
  std::string json;                          ///< file for the rows; if empty, no file is written
  std::string peer_python;                   ///< Python interpreter of the peers; if empty, Python peers are left out
  std::string data;                          ///< folder of the digits; default: data/digits of the checkout
  std::map<std::string, std::string> extra;  ///< further `--key VALUE` pairs of the program
};

/// Parses the options. After `--help`, the program ends with exit code 0; after an error, with 2. If the variable
/// GOMP_SPINCOUNT is not set, the program restarts once with GOMP_SPINCOUNT=20000. libgomp reads the variable before main,
/// and its default spinning distorts timings on a shared machine.
/// Params: about – one paragraph for --help
///         extra – keys of further options, with their default values
Options parse_options(int argc, char** argv, std::string_view about, std::map<std::string, std::string> extra = {});

/// The main function of a benchmark. It parses the options and runs the program. An exception becomes a message and exit code 1.
/// If a run with --quick does not end at its deadline, it is stopped a little later. The finished rows are printed and written.
/// Params: about, extra – like parse_options()
int bench_main(int argc, char** argv, std::string_view about, const std::function<int(const Options&)>& program,
               std::map<std::string, std::string> extra = {});

/// One side of a comparison. It runs `n` units of the work (steps, samples, calls) and returns their time in seconds.
struct Contestant {
  std::string name;
  std::function<double(int64_t n)> run;
};

/// Returns the time of a call in seconds.
double seconds_of(const std::function<void()>& action);
/// Returns a contestant whose units of work are calls to `unit`.
Contestant timed_contestant(std::string name, std::function<void()> unit);

/// The extent of a measurement. Each window is one call of a contestant. The sides run their windows in turns.
struct Plan {
  int64_t units = 0;      ///< units per window; 0: as many as the first side runs in `window_s`
  double window_s = 0.5;  ///< length of a window in seconds if `units` is 0
  int windows = 11;       ///< timed windows per side
  int warmup = 1;         ///< untimed windows per side before the first timed window
  double budget_s = 1e9;  ///< after this many seconds, no new round of windows starts if there are at least two
  /// Called before each round. It measures the limit at about the same time, because speeds on shared machines change.
  std::function<void()> before_round{};
  Deadline deadline = run_deadline();  ///< has the same effect as budget_s
};

/// The timings of one side, in seconds per unit.
struct Side {
  std::string name;
  std::vector<double> windows;
  double seconds() const { return median(windows); }
  /// Half the distance between the quartiles, divided by the median.
  double spread() const;
};

/// The sides in the given order. By convention, the first side is ours.
struct Comparison {
  std::vector<Side> sides;
  int64_t units = 0;

  const Side& ours() const { return sides.front(); }
  /// Returns the fastest of the other sides.
  /// Throws: c10::ValueError if there is no other side
  const Side& best_peer() const;
  /// Returns the time of `peer` divided by the time of ours, window by window. Above 1, ours is faster.
  RatioInterval speedup_over(const Side& peer) const { return paired_ratio(peer.windows, ours().windows); }
};

/// Measures the sides in turns (A B C, B C A, …), so that changes of the machine's speed affect all sides equally.
/// Throws: c10::ValueError if there are fewer than two windows, or if there is no side
Comparison compare(const std::vector<Contestant>& sides, const Plan& plan);

/// One result, as it is written to the JSON file.
struct Row {
  std::string work;    ///< "resnet18 step, batch 32, 64x64, fp32"
  std::string metric;  ///< "time per step"
  std::string unit;    ///< "ms"
  double ours = 0;
  std::vector<std::pair<std::string, double>> peers;
  double limit =
      std::numeric_limits<double>::quiet_NaN();  ///< the limit of this machine, in the same unit; NaN if unknown
  double ratio_to_best_peer = std::numeric_limits<double>::quiet_NaN();  ///< above 1: ours is better; NaN: no peer
  bool equal = false;  ///< whether the results of all sides were compared and agree

  // Printed, and written to the file in addition to the rows.
  RatioInterval interval{};   ///< interval of ratio_to_best_peer
  std::string best_peer{};    ///< the side to which the ratio refers
  std::string note{};         ///< a line below the row, such as the achieved share of the limit
  std::vector<Side> sides{};  ///< all windows
};

/// Returns a row with the time per unit.
/// Params: unit – "s", "ms", "us" or "ns"
Row time_row(std::string work, std::string metric, std::string unit, const Comparison& comparison, bool equal);
/// Returns a row with units per second. One unit of the comparison contains `per_unit` samples (bytes, …).
Row rate_row(std::string work, std::string metric, std::string unit, const Comparison& comparison, bool equal,
             double per_unit = 1);

/// Returns a row with the time that a hook adds to a unit of work. It subtracts windows without the hook from windows with the
/// hook, pairwise in sorted order. The interval of the ratio is the widest that the two differences allow. If an end of the
/// interval cannot be distinguished from no time, it is 0 or infinity. The limit is the time of the work without the hook.
/// Params: all – sides in this order: ours with the hook, ours without it, then, if there are peers, the peer without a hook
///               and each peer with a hook. At least five windows
Row added_time_row(std::string work, std::string metric, const std::string& unit, const Comparison& all, bool equal);

/// Collects rows and prints each row, at most 80 columns wide, when it is added. If --json is set, the file is then written again:
/// `{"bench", "machine", "rows", "details"}`.
class Report {
 public:
  Report(std::string name, Options options, Deadline deadline = run_deadline());
  void add(Row row);
  /// Returns whether the remaining time is at least as long as the longest row so far. The first row always has time. Rows without
  /// time are listed at the end, so add the most important rows first.
  bool has_time_for(const std::string& row);
  /// Prints the rows that were left out. Returns the exit code of the program: 0, or 1 if the results of a row were not equal.
  int finish() const;

 private:
  void write_file() const;

  std::string name_;
  Options options_;
  Deadline deadline_;
  std::vector<Row> rows_;
  std::vector<std::string> left_out_;
  double last_left_s_ = 0,
         longest_row_s_ = 0;  ///< remaining time of the deadline after the last row; time of the longest row
};

/// Returns the highest memory rate in bytes read and written per second. It is the best of all loops of streams.h over arrays
/// that have `working_set` bytes in total, with as many threads as an operator uses. Later calls measure again and can only
/// raise the rate.
/// Params: working_set – bytes that the measured work touches, which may partly fit into the caches
double memory_bytes_per_s(size_t working_set);
/// Like above, for arrays that are much larger than all caches.
double memory_bytes_per_s();

/// Returns the highest number of floating-point operations per second: the best of matrix multiplications of several shapes and of
/// convolutions. Later calls measure again and can only raise the rate.
double gemm_flops_per_s(c10::ScalarType dtype);

/// Returns names and values in order: CPU, cores, features, memory, libtorch, threads, spin count, date.
std::vector<std::pair<std::string, std::string>> machine_info();

/// Returns the folder of the checkout from which this program was built. It contains the scripts of the peers.
std::string source_dir();

}  // namespace bellows::bench
