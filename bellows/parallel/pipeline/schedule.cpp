#include "bellows/parallel/pipeline/schedule.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "bellows/core/error.h"
#include "bellows/io/bytes.h"
#include "bellows/parallel/pipeline/timeline.h"
#include "bellows/system/file.h"

namespace bellows::parallel {

namespace {

using Actions = std::vector<PipelineAction>;

void check_counts(const char* name, int ranks, int micro_batches) {
  TORCH_CHECK_VALUE(ranks >= 1 && micro_batches >= 1, name, ": expected at least 1 rank and 1 micro-batch, got ", ranks,
                    " and ", micro_batches, ".");
}

PipelineSchedule empty_schedule(std::string name, int ranks, int micro_batches, int stages) {
  PipelineSchedule schedule{.name = std::move(name), .micro_batches = micro_batches};
  for (int stage = 0; stage < stages; ++stage) schedule.stage_ranks.push_back(stage % ranks);
  schedule.ranks.resize(static_cast<size_t>(ranks));
  return schedule;
}

/// `warmup` forward passes, then pairs of a forward and a backward pass, then the remaining backward passes.
/// Params: forward, backward – the k-th pass of this rank
Actions alternate(int total, int warmup, const std::function<PipelineAction(int)>& forward,
                  const std::function<PipelineAction(int)>& backward) {
  Actions actions;
  for (int k = 0; k < warmup; ++k) actions.push_back(forward(k));
  for (int k = warmup; k < total; ++k) {
    actions.push_back(forward(k));
    actions.push_back(backward(k - warmup));
  }
  for (int k = total - warmup; k < total; ++k) actions.push_back(backward(k));
  return actions;
}

/// Identifies an action, to find duplicates.
using ActionKey = std::tuple<int, int, PipelineWork>;

void check_action(const PipelineSchedule& schedule, int rank, const PipelineAction& action,
                  std::set<ActionKey>& known) {
  const auto [work, stage, micro_batch] = action;
  TORCH_CHECK_VALUE(stage >= 0 && stage < schedule.stages() && micro_batch >= 0 && micro_batch < schedule.micro_batches,
                    "schedule ", schedule.name, ": rank ", rank, " has the action ", to_string(action),
                    ", but there are ", schedule.stages(), " stages and ", schedule.micro_batches,
                    " micro-batches, which are counted from 0.");
  const int owner = schedule.stage_ranks[static_cast<size_t>(stage)];
  TORCH_CHECK_VALUE(owner == rank, "schedule ", schedule.name, ": rank ", rank, " has the action ", to_string(action),
                    ", but stage ", stage, " belongs to rank ", owner, ".");
  TORCH_CHECK_VALUE(known.emplace(stage, micro_batch, work).second, "schedule ", schedule.name, ": rank ", rank,
                    " has the action ", to_string(action), " twice.");
}

void check_complete(const PipelineSchedule& schedule, const std::set<ActionKey>& known) {
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    for (int micro_batch = 0; micro_batch < schedule.micro_batches; ++micro_batch) {
      const auto has = [&](PipelineWork work) { return known.count({stage, micro_batch, work}) != 0; };
      const bool whole =
          has(PipelineWork::backward) && !has(PipelineWork::backward_input) && !has(PipelineWork::backward_weight);
      const bool divided =
          !has(PipelineWork::backward) && has(PipelineWork::backward_input) && has(PipelineWork::backward_weight);
      TORCH_CHECK_VALUE(has(PipelineWork::forward) && (whole || divided), "schedule ", schedule.name, ": stage ", stage,
                        " needs for micro-batch ", micro_batch, " one F and either one B, or one I and one W (rank ",
                        schedule.stage_ranks[static_cast<size_t>(stage)], ").");
    }
  }
}

int parse_number(std::string_view text, int line) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  TORCH_CHECK_VALUE(error == std::errc() && end == text.data() + text.size(), "schedule: expected a number, got ",
                    io::printable(text), " (line ", line, ").");
  return number;
}

PipelineAction parse_action(std::string_view text, int line) {
  constexpr std::string_view letters = "FBIW";
  const size_t point = text.find('.'), work = text.empty() ? letters.npos : letters.find(text[0]);
  TORCH_CHECK_VALUE(work != letters.npos && point != text.npos, "schedule: expected an action such as F0.3, got ",
                    io::printable(text), " (line ", line, "). The letters are F, B, I and W.");
  return {.work = static_cast<PipelineWork>(work),
          .stage = parse_number(text.substr(1, point - 1), line),
          .micro_batch = parse_number(text.substr(point + 1), line)};
}

std::vector<std::string_view> words_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> words;
  for (size_t at = 0; (at = line.find_first_not_of(" \t\r", at)) != line.npos;) {
    const size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

bool is_control(char character) {
  return static_cast<unsigned char>(character) < 0x20 || character == 0x7f;
}

void parse_line(PipelineSchedule& schedule, const std::vector<std::string_view>& words, int line) {
  const std::string_view key = words[0];
  if (key == "schedule") {
    schedule.name.clear();
    for (size_t i = 1; i < words.size(); ++i) schedule.name += (i > 1 ? " " : "") + std::string(words[i]);
    TORCH_CHECK_VALUE(std::none_of(schedule.name.begin(), schedule.name.end(), is_control),
                      "schedule: expected a name of printable characters, got ", io::printable(schedule.name),
                      " (line ", line, ").");
  } else if (key == "micro_batches" && words.size() == 2) {
    schedule.micro_batches = parse_number(words[1], line);
  } else if (key == "stage_ranks") {
    for (size_t i = 1; i < words.size(); ++i) schedule.stage_ranks.push_back(parse_number(words[i], line));
  } else if (key == "rank" && words.size() >= 2 && words[1].ends_with(':')) {
    const int rank = parse_number(words[1].substr(0, words[1].size() - 1), line);
    TORCH_CHECK_VALUE(rank == static_cast<int>(schedule.ranks.size()), "schedule: expected the actions of rank ",
                      schedule.ranks.size(), ", got those of rank ", rank, " (line ", line, ").");
    Actions& actions = schedule.ranks.emplace_back();
    for (size_t i = 2; i < words.size(); ++i) actions.push_back(parse_action(words[i], line));
  } else {
    TORCH_CHECK_VALUE(false, "schedule: expected \"schedule\", \"micro_batches\", \"stage_ranks\" or \"rank R:\", got ",
                      io::printable(key), " (line ", line, ").");
  }
}

}  // namespace

const char* to_string(PipelineWork work) {
  constexpr const char* names[] = {"forward", "backward", "backward input", "backward weight"};
  return names[static_cast<size_t>(work)];
}

std::string to_string(const PipelineAction& action) {
  return std::string(1, "FBIW"[static_cast<size_t>(action.work)]) + std::to_string(action.stage) + "." +
         std::to_string(action.micro_batch);
}

PipelineSchedule gpipe(int ranks, int micro_batches) {
  check_counts("gpipe", ranks, micro_batches);
  PipelineSchedule schedule = empty_schedule("gpipe", ranks, micro_batches, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    Actions& actions = schedule.ranks[static_cast<size_t>(rank)];
    for (const PipelineWork work : {PipelineWork::forward, PipelineWork::backward}) {
      for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch)
        actions.push_back({work, rank, micro_batch});
    }
  }
  return schedule;
}

PipelineSchedule one_forward_one_backward(int ranks, int micro_batches) {
  check_counts("one_forward_one_backward", ranks, micro_batches);
  PipelineSchedule schedule = empty_schedule("1f1b", ranks, micro_batches, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    schedule.ranks[static_cast<size_t>(rank)] = alternate(
        micro_batches, std::min(ranks - rank - 1, micro_batches),
        [&](int k) {
          return PipelineAction{PipelineWork::forward, rank, k};
        },
        [&](int k) {
          return PipelineAction{PipelineWork::backward, rank, k};
        });
  }
  return schedule;
}

PipelineSchedule interleaved(int ranks, int micro_batches, int stages_per_rank) {
  check_counts("interleaved", ranks, micro_batches);
  TORCH_CHECK_VALUE(stages_per_rank >= 1, "interleaved: expected at least 1 stage per rank, got ", stages_per_rank,
                    ".");
  TORCH_CHECK_VALUE(micro_batches % ranks == 0, "interleaved: the number of micro-batches, ", micro_batches,
                    ", must be a multiple of the number of ranks, ", ranks, ".");
  PipelineSchedule schedule = empty_schedule("interleaved", ranks, micro_batches, ranks * stages_per_rank);
  const int total = stages_per_rank * micro_batches, round = ranks * stages_per_rank;
  for (int rank = 0; rank < ranks; ++rank) {
    // In each round, a rank runs `ranks` micro-batches through its first stage, then through its second one, and so on.
    const auto pass = [&](PipelineWork work, int k) {
      const int turn = k % round / ranks;
      const int chunk = work == PipelineWork::forward ? turn : stages_per_rank - 1 - turn;
      return PipelineAction{work, chunk * ranks + rank, k / round * ranks + k % ranks};
    };
    schedule.ranks[static_cast<size_t>(rank)] = alternate(
        total, std::min(total, (ranks - rank - 1) * 2 + (stages_per_rank - 1) * ranks),
        [&](int k) { return pass(PipelineWork::forward, k); }, [&](int k) { return pass(PipelineWork::backward, k); });
  }
  return schedule;
}

PipelineSchedule zero_bubble_h1(int ranks, int micro_batches) {
  check_counts("zero_bubble_h1", ranks, micro_batches);
  PipelineSchedule schedule = empty_schedule("zero_bubble", ranks, micro_batches, ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    Actions& actions = schedule.ranks[static_cast<size_t>(rank)];
    int forward = 0, input = 0, weight = 0;
    while (forward < std::min(ranks - rank, micro_batches)) actions.push_back({PipelineWork::forward, rank, forward++});
    while (weight < micro_batches) {
      if (input < micro_batches) actions.push_back({PipelineWork::backward_input, rank, input++});
      // Rank r delays r weight gradients, which fill its bubble at the end of the step.
      if (input - weight > rank || input == micro_batches)
        actions.push_back({PipelineWork::backward_weight, rank, weight++});
      if (forward < micro_batches) actions.push_back({PipelineWork::forward, rank, forward++});
    }
  }
  return schedule;
}

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = {"gpipe", "1f1b", "interleaved", "zero_bubble"};
  return names;
}

PipelineSchedule named_schedule(const std::string& name, int ranks, int micro_batches, int stages_per_rank) {
  if (name == "gpipe") return gpipe(ranks, micro_batches);
  if (name == "1f1b") return one_forward_one_backward(ranks, micro_batches);
  if (name == "interleaved") return interleaved(ranks, micro_batches, stages_per_rank);
  TORCH_CHECK_VALUE(name == "zero_bubble", "schedule: expected ", c10::Join(", ", schedule_names()), ", got \"", name,
                    "\".", did_you_mean(name, schedule_names()));
  return zero_bubble_h1(ranks, micro_batches);
}

void check_schedule(const PipelineSchedule& schedule) {
  TORCH_CHECK_VALUE(schedule.micro_batches >= 1 && schedule.stages() >= 1 && !schedule.ranks.empty(), "schedule ",
                    schedule.name, ": expected at least 1 micro-batch, 1 stage and 1 rank, got ",
                    schedule.micro_batches, ", ", schedule.stages(), " and ", schedule.ranks.size(), ".");
  std::set<ActionKey> known;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    TORCH_CHECK_VALUE(std::count(schedule.stage_ranks.begin(), schedule.stage_ranks.end(), static_cast<int>(rank)) > 0,
                      "schedule ", schedule.name, ": rank ", rank, " has no stage.");
    for (const PipelineAction& action : schedule.ranks[rank])
      check_action(schedule, static_cast<int>(rank), action, known);
  }
  check_complete(schedule, known);
  plan_timeline(schedule, {});  // throws if a rank waits forever
}

std::vector<int> activations_in_flight(const PipelineSchedule& schedule) {
  std::vector<int> most;
  for (const Actions& actions : schedule.ranks) {
    int now = 0, largest = 0;
    for (const PipelineAction& action : actions) {
      if (action.work == PipelineWork::forward) largest = std::max(largest, ++now);
      if (action.work == PipelineWork::backward || action.work == PipelineWork::backward_weight) --now;
    }
    most.push_back(largest);
  }
  return most;
}

std::string to_text(const PipelineSchedule& schedule) {
  std::string text =
      "schedule " + schedule.name + "\nmicro_batches " + std::to_string(schedule.micro_batches) + "\nstage_ranks";
  for (const int rank : schedule.stage_ranks) text += " " + std::to_string(rank);
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    text += "\nrank " + std::to_string(rank) + ":";
    for (const PipelineAction& action : schedule.ranks[rank]) text += " " + to_string(action);
  }
  return text + "\n";
}

PipelineSchedule schedule_from_text(const std::string& text) {
  PipelineSchedule schedule;
  int line = 0;
  for (size_t at = 0; at < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const auto words = words_of(std::string_view(text).substr(at, end - at));
    if (!words.empty()) parse_line(schedule, words, line + 1);
    at = end + 1;
  }
  check_schedule(schedule);
  return schedule;
}

PipelineSchedule read_schedule(const std::string& path) {
  try {
    return schedule_from_text(read_text_file(path));
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(false, "read_schedule: cannot read ", path, ": ", user_message(error),
                      " Expected a file that write_schedule() wrote.");
  }
}

void write_schedule(const PipelineSchedule& schedule, const std::string& path) {
  check_schedule(schedule);
  write_text_file(path, to_text(schedule));
}

}  // namespace bellows::parallel
