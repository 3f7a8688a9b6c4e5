// Photographs to batches: ours against what Python offers, all in one alternating run, each side in its own process.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "bellows/io/images/image.h"
#include "bellows/system/file.h"
#include "bellows/system/machine.h"
#include "bench/loader/photographs.h"
#include "bench/loader/side.h"
#include "bench/support/bench.h"
#include "bench/support/peer_process.h"

namespace bellows::bench {

namespace {

constexpr int64_t count_of_photographs = 512, checked = 8, checked_side = 375;

/// A folder of its own for the data sets, removed at the end.
class WorkFolder {
 public:
  WorkFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "bellows_loader_XXXXXX").string();
    TORCH_CHECK(mkdtemp(pattern.data()), "loader: cannot create a folder with the pattern ", pattern, ".");
    path_ = pattern;
  }
  ~WorkFolder() { std::filesystem::remove_all(path_); }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// One side: a process and what it used.
class LoaderSide {
 public:
  /// Params: tolerance – of decoded values, in levels of 255: the largest difference
  LoaderSide(std::string name, const std::vector<std::string>& command, double tolerance)
      : name_(std::move(name)), tolerance_(tolerance), process_(command, 300) {}
  ~LoaderSide() {
    try {
      process_.ask("close", 20);
    } catch (const c10::Error&) {  // it is ended anyway
    }
  }
  LoaderSide(const LoaderSide&) = delete;
  LoaderSide& operator=(const LoaderSide&) = delete;

  const std::string& name() const { return name_; }
  double tolerance() const { return tolerance_; }

  /// Middles of the first photographs, as floats.
  std::vector<float> middles(const std::string& folder) {
    const std::string file = folder + "/middles";
    process_.ask("check " + file + " " + std::to_string(checked) + " " + std::to_string(checked_side), 300);
    const MappedFile content(file);
    std::vector<float> values(content.bytes().size() / sizeof(float));
    std::memcpy(values.data(), content.bytes().data(), values.size() * sizeof(float));
    return values;
  }

  Contestant as_contestant() {
    return {name_, [this](int64_t n) {
              const double cpu_before = usage()[0], seconds = process_.run(n);
              const std::vector<double> after = usage();
              cpu_s_ += after[0] - cpu_before;
              photographs_ += static_cast<double>(n * count_of_photographs);
              resident_mb_ = std::max(resident_mb_, after[1]);
              anonymous_mb_ = std::max(anonymous_mb_, after[2]);
              return seconds;
            }};
  }

  double cpu_us() const { return 1e6 * cpu_s_ / photographs_; }
  double resident_mb() const { return resident_mb_; }
  double anonymous_mb() const { return anonymous_mb_; }

 private:
  std::vector<double> usage() { return process_.ask_numbers("usage"); }

  std::string name_;
  double tolerance_;
  PeerProcess process_;
  double cpu_s_ = 0, photographs_ = 0, resident_mb_ = 0, anonymous_mb_ = 0;
};

using Sides = std::vector<std::unique_ptr<LoaderSide>>;

/// Ours first; a side's name says what it reads.
Sides start_sides(const Options& options, const std::string& folder) {
  const std::string threads = std::to_string(at::get_num_threads());
  Sides sides;
  for (const auto& [name, kind] : {std::pair{"ours, beton jpg", "beton"},
                                   {"ours, beton raw", "raw"},
                                   {"ours, WebDataset tar", "tar"},
                                   {"ours, Bellows pack", "pack"},
                                   {"ours, pack with restarts", "restart"}})
    sides.push_back(std::make_unique<LoaderSide>(
        name, std::vector<std::string>{"/proc/self/exe", "serve", kind, folder, threads}, 0.01));
  if (options.peer_python.empty()) return sides;
  // FFCV decodes with libjpeg-turbo's fast transform, the others with the accurate one.
  std::vector<std::tuple<std::string, std::string, double>> peers = {{"FFCV, beton jpg", "ffcv_jpg", 40},
                                                                     {"DataLoader, Pillow", "pillow", 0.01}};
  if (!options.quick) {  // compiling FFCV's second pipeline alone would take half of the minute
    peers.insert(peers.end(), {{"FFCV, beton raw", "ffcv_raw", 0.01},
                               {"DataLoader, torchvision.io", "torchvision", 0.01},
                               {"webdataset, tar", "webdataset", 0.01},
                               {"mosaicml-streaming, MDS", "streaming", 0.01}});
  }
  for (const auto& [name, kind, tolerance] : peers) {
    sides.push_back(std::make_unique<LoaderSide>(
        name,
        std::vector<std::string>{options.peer_python, source_dir() + "/bench/peers/loader.py", kind, folder, threads},
        tolerance));
  }
  return sides;
}

/// The largest difference in levels of 255; infinite where counts differ.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  constexpr double std_of[] = {0.229, 0.224, 0.225};
  constexpr size_t plane = checked_side * checked_side;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, 255 * std_of[i / plane % 3] * std::abs(static_cast<double>(a[i]) - b[i]));
  return largest;
}

/// All sides give the same middles of the same photographs.
bool check_sides(Sides& sides, const std::string& folder) {
  const std::vector<float> expected = sides.front()->middles(folder);
  bool equal = true;
  for (const auto& side : sides) {
    const double found = difference(expected, side->middles(folder));
    equal = equal && found <= side->tolerance();
    std::printf("  %-34s differs from ours by at most %.3f of 255 levels (allowed: %.2f)\n", side->name().c_str(),
                found, side->tolerance());
  }
  return equal;
}

/// Full photographs that all cores decode in a second, in the fastest way that libjpeg-turbo has.
double decoded_per_s(const Photographs& photographs) {
  const auto threads = static_cast<size_t>(at::get_num_threads());
  double best = 0;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::jthread> workers;
    for (size_t t = 0; t < threads; ++t) {
      workers.emplace_back([&, t] {
        std::vector<uint8_t> memory;
        const io::PartOptions whole{.region = {0, 0, Photographs::height, Photographs::width}, .fast = true};
        for (size_t i = t; i < photographs.jpegs.size(); i += threads)
          io::decode_image_part(io::as_bytes(photographs.jpegs[i]), whole, memory);
      });
    }
    workers.clear();  // waits for all
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(photographs.jpegs.size()) / seconds.count());
  }
  return best;
}

/// The comparison of some of the sides, ours first.
Comparison part_of(const Comparison& all, const std::vector<std::string>& names) {
  Comparison part{.sides = {}, .units = all.units};
  for (const std::string& name : names) {
    const auto found = std::find_if(all.sides.begin(), all.sides.end(), [&](const Side& s) { return s.name == name; });
    if (found != all.sides.end()) part.sides.push_back(*found);
  }
  return part;
}

/// One figure a side, least is best; ours is the first.
Row figures_row(const std::string& metric, const std::string& unit, const Sides& sides, bool equal,
                double (LoaderSide::*figure)() const) {
  Row row{
      .work = "500x375 JPEG to batches of 64 x 224 x 224", .metric = metric, .unit = unit, .peers = {}, .equal = equal};
  row.ours = (*sides.front().*figure)();
  for (size_t i = 1; i < sides.size(); ++i) {
    const double theirs = (*sides[i].*figure)();
    row.peers.emplace_back(sides[i]->name(), theirs);
    const bool ours_too = sides[i]->name().starts_with("ours");
    if (ours_too || (!row.best_peer.empty() && theirs / row.ours >= row.ratio_to_best_peer)) continue;
    row.best_peer = sides[i]->name();
    row.ratio_to_best_peer = theirs / row.ours;
    row.interval = {row.ratio_to_best_peer, row.ratio_to_best_peer, row.ratio_to_best_peer};
  }
  return row;
}

void report_rates(Report& report, const Comparison& all, const Photographs& photographs, bool equal) {
  const auto add = [&](const std::string& what, const std::vector<std::string>& names, double limit,
                       const std::string& note) {
    Row row = rate_row(what, "images per second, all cores", "/s", part_of(all, names), equal, count_of_photographs);
    row.limit = limit;
    row.note = note;
    report.add(std::move(row));
  };
  const double decoding = decoded_per_s(photographs);
  const std::string decode_note = "limit: only the fast decoding of complete photographs by libjpeg-turbo, all cores";
  add("JPEG, .beton",
      {"ours, beton jpg", "FFCV, beton jpg", "DataLoader, Pillow", "DataLoader, torchvision.io", "webdataset, tar",
       "mosaicml-streaming, MDS"},
      decoding, decode_note);
  add("JPEG, tar", {"ours, WebDataset tar", "webdataset, tar"}, decoding, decode_note);
  add("JPEG, pack", {"ours, Bellows pack", "FFCV, beton jpg"}, decoding, decode_note);
  add("JPEG, pack with restart markers", {"ours, pack with restarts", "ours, Bellows pack", "FFCV, beton jpg"},
      decoding, decode_note + "; a crop decodes only a part of a photograph");
  // On average 54 % of the pixels are read, as bytes, and a picture of floats is written.
  constexpr double moved = 0.54 * 3 * Photographs::height * Photographs::width + 4.0 * 3 * 224 * 224;
  add("raw pixels, .beton", {"ours, beton raw", "FFCV, beton raw"}, memory_bytes_per_s() / moved,
      "limit: reading the crop and writing the result at memory bandwidth, all cores");
}

int run(const Options& options) {
  Report report("loader", options);
  const WorkFolder folder;
  const Photographs photographs = make_photographs(count_of_photographs);
  write_photographs(photographs, folder.path());
  Sides sides = start_sides(options, folder.path());
  const bool equal = check_sides(sides, folder.path());
  std::vector<Contestant> contestants;
  for (const auto& side : sides) contestants.push_back(side->as_contestant());
  const Comparison all = compare(contestants, {.units = options.quick ? 1 : 4,
                                               .windows = options.quick ? 5 : 11,
                                               .warmup = 1,
                                               .budget_s = options.quick ? 20 : 1e9});
  report_rates(report, all, photographs, equal);
  report.add(figures_row("CPU time per image", "us", sides, equal, &LoaderSide::cpu_us));
  report.add(figures_row("resident memory (proportional set size)", "MB", sides, equal, &LoaderSide::resident_mb));
  report.add(figures_row("resident memory without files", "MB", sides, equal, &LoaderSide::anonymous_mb));
  return report.finish();
}

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  if (argc == 5 && std::string_view(argv[1]) == "serve") return serve_side(argv[2], argv[3], std::stoi(argv[4]));
  return bench_main(
      argc, argv,
      "Loads photographs of 500x375 pixels (JPEG, quality 90) into batches of 64: random resized crop to 224, flip, "
      "normalize.\nCompares our loader with several formats against FFCV, DataLoader with torchvision, webdataset and "
      "mosaicml-streaming.\nEach side runs in its own processes. Before that, the decoded images are compared.",
      run);
}
