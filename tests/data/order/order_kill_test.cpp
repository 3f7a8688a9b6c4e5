#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "bellows/data/order/labels.h"
#include "tests/data/order/order_support.h"
#include "tests/support/slow_tests.h"

namespace bellows::data::testing {
namespace {

/// One rank as a process of its own, until the epoch ends: each batch becomes a line "consumed id id …" of the file.
pid_t start_rank(const Dataset& data, int64_t epoch, int64_t consumed, const std::string& log) {
  const pid_t child = fork();
  if (child != 0) return child;
  const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  Loader loader = data.loader();
  loader.start_at(epoch, consumed);
  while (auto batch = loader.next()) {
    std::string line = std::to_string(batch->consumed());
    for (int64_t row = 0; row < batch->size() - batch->padding(); ++row)
      line += " " + std::to_string(batch->ids()[static_cast<size_t>(row)]);
    line += "\n";
    if (write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) _exit(2);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // a step of the model
  }
  _exit(0);
}

struct Line {
  int64_t consumed = 0;
  std::vector<int64_t> ids;
};

std::vector<Line> lines(const std::string& log) {
  std::vector<Line> result;
  std::ifstream file(log);
  for (std::string text; std::getline(file, text);) {
    std::istringstream words(text);
    Line& line = result.emplace_back();
    words >> line.consumed;
    for (int64_t id = 0; words >> id;) line.ids.push_back(id);
  }
  return result;
}

/// Kills with SIGKILL. True when the process had ended by itself.
bool kill_and_wait(pid_t child) {
  kill(child, SIGKILL);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0) << status;
  return !WIFSIGNALED(status);
}

/// Adds what all ranks had taken at the last step that each of them has written. Returns where that is.
int64_t collect(const std::vector<std::string>& logs, int64_t consumed, std::vector<int64_t>& seen) {
  int64_t common = INT64_MAX;
  for (const std::string& log : logs) {
    const auto written = lines(log);
    common = std::min(common, written.empty() ? consumed : written.back().consumed);
  }
  for (const std::string& log : logs) {
    for (const Line& line : lines(log))
      if (line.consumed <= common) seen.insert(seen.end(), line.ids.begin(), line.ids.end());
  }
  return common;
}

/// Runs worlds of random shapes one after the other, each killed at a random moment, until an epoch is through. What
/// is behind the last step that all ranks have written is lost, as with a checkpoint, and comes again. Returns the kills.
int kill_until_through(const std::string& name, const Dataset& data, int64_t epoch, RandomStream& random) {
  TemporaryFolder folder;
  const auto some = [&](uint64_t least, uint64_t most) {
    return static_cast<int64_t>(least + random.below(most - least + 1));
  };
  int64_t consumed = 0;
  int kills = 0;
  std::vector<int64_t> seen;
  for (int round = 0; round < 200; ++round) {
    const int64_t world = some(1, 4);
    const Dataset set =
        data.batch(some(1, 12), some(0, 1) == 0 ? Remainder::uneven : Remainder::pad).threads(some(0, 3));
    std::vector<pid_t> ranks;
    std::vector<std::string> logs;
    logs.reserve(static_cast<size_t>(world));
    for (int64_t rank = 0; rank < world; ++rank) {
      logs.push_back(folder / std::to_string(round) + "." + std::to_string(rank));
      ranks.push_back(start_rank(set.distributed(rank, world), epoch, consumed, logs.back()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(some(5, kills < 3 ? 25 : 400)));
    bool all_ended = true;
    for (const pid_t rank : ranks) all_ended &= kill_and_wait(rank);
    kills += !all_ended;
    consumed = collect(logs, consumed, seen);
    if (all_ended) break;
  }
  std::vector<int64_t> expected;
  Loader whole = data.batch(64).loader();
  for (const Batch& batch : whole.epoch(epoch)) expected.insert(expected.end(), batch.ids().begin(), batch.ids().end());
  EXPECT_EQ(sorted(seen), sorted(expected)) << name << ", epoch " << epoch << ", " << kills << " kills";
  return kills;
}

/// Epoch after epoch, until there were so many kills: a fast machine gets through some without any.
void kill_often(const std::string& name, const Dataset& data, int least) {
  RandomStream random(9);
  int kills = 0;
  for (int64_t epoch = 0; kills < least && epoch < 20 + least; ++epoch)
    kills += kill_until_through(name, data, epoch, random);
  EXPECT_GE(kills, least) << name;
}

TEST(KilledLoaders, GoOnInAnotherWorldWithExactlyTheRest) {
  const Dataset digits = data::open(kDigits, {.split = "train"}).normalize();
  const std::vector<int64_t> labels = read_labels(*digits.source());
  const int least = slow_tests() ? 60 : 3;
  kill_often("shuffled", digits.shuffle(1), least);
  kill_often("page_shuffled", digits.order(page_shuffled({.lanes = 4, .run = 4}), 1), least);
  kill_often("class_balanced", digits.order(class_balanced(labels), 1), least);
}

/// Peak memory, in bytes, that `body` takes on top of what the process has.
template <class F>
int64_t peak_bytes(const F& body) {
  int pipes[2];
  if (pipe(pipes) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    const auto peak = [] {
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      return static_cast<int64_t>(usage.ru_maxrss) * 1024;
    };
    const int64_t before = peak();
    body();
    const int64_t taken = peak() - before;
    _exit(write(pipes[1], &taken, sizeof(taken)) == sizeof(taken) ? 0 : 1);
  }
  int64_t taken = -1;
  EXPECT_EQ(read(pipes[0], &taken, sizeof(taken)), static_cast<ssize_t>(sizeof(taken)));
  close(pipes[0]);
  close(pipes[1]);
  waitpid(child, nullptr, 0);
  return taken;
}

TEST(Order, NeedsAtMostEightBytesASample) {
  const int64_t n = slow_tests() ? 100'000'000 : 4'000'000;
  const auto source = uneven_blocks(n);
  for (const auto& [name, order, bytes] :
       std::vector<std::tuple<std::string, OrderPtr, int64_t>>{{"sequential", sequential(), 0},
                                                               {"shuffled", shuffled(), 4},
                                                               {"buffered", buffered(10000), 4},
                                                               {"page_shuffled", page_shuffled(), 8},
                                                               {"mixed", mixed({n / 2, n - n / 2}, {1, 3}), 8}}) {
    const auto begin = std::chrono::steady_clock::now();
    const int64_t peak = peak_bytes([&, &kind = order] { kind->positions(*source, 1, 1); });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_LE(peak, bytes * n + n + (8 << 20)) << name;  // and lists of blocks
    RecordProperty(name,
                   c10::str(peak / n, " bytes, ", 1e9 * seconds.count() / static_cast<double>(n), " ns a sample"));
  }
}

}  // namespace
}  // namespace bellows::data::testing
