#include "bellows/core/error.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <numeric>

namespace bellows {

namespace {

/// Number of insertions, deletions, substitutions and swaps of adjacent letters ("trian") that turn `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, above, row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(above, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_match(std::string_view name, const std::vector<std::string>& candidates) {
  // Up to a third of the letters may differ: "batchsize" finds "batch_size", "foo" finds nothing.
  size_t best = std::max<size_t>(1, name.size() / 3) + 1;
  std::string found;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < best) {
      best = distance;
      found = candidate;
    }
  }
  return found;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string match = nearest_match(name, candidates);
  return match.empty() ? "" : " Did you mean \"" + match + "\"?";
}

namespace {

/// Words that identify a message of libtorch or the system, and its explanation for a training run.
struct Translation {
  std::string_view words, meaning;
};

constexpr std::string_view no_memory =
    "Out of memory. Use a smaller batch_size with more gradient_accumulation_steps, or set recompute: blocks.";

// oneDNN reports a lack of memory with the first text, and an unsupported shape with the second one.
constexpr std::string_view no_primitive = "could not create a primitive",
                           no_descriptor = "could not create a primitive descriptor";

constexpr std::array translations = {
    Translation{"DefaultCPUAllocator: ", no_memory},
    Translation{"enforce fail at alloc_cpu", no_memory},
    Translation{"CUDA out of memory", no_memory},
    Translation{"Expected more than 1 value per channel when training",
                "Batch norm cannot train on a batch of one sample. The last batch of an epoch may contain only one "
                "sample: choose another batch_size, or drop the last batch."},
    Translation{"Resource temporarily unavailable",
                "The system cannot start another thread or process. Raise the limit (ulimit -u), or use fewer threads "
                "(OMP_NUM_THREADS, num_workers)."},
    Translation{"Too many open files", "The process has reached its limit of open files. Raise the limit (ulimit -n)."},
    Translation{"Failed to init uv loop",
                "The rendezvous store cannot start. This often means that the process has reached its limit of open "
                "files. Raise the limit (ulimit -n)."},
};

/// The limit of a resource, as the shell's `ulimit` shows it: "64", or "unlimited". Params: unit – bytes per unit
std::string limit_text(decltype(RLIMIT_AS) resource, rlim_t unit, const char* unit_name) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return std::to_string(limit.rlim_cur / unit) + unit_name;
}

/// Removes the stack trace that libtorch's network errors contain in their text.
std::string without_stack(std::string message) {
  const size_t stack = message.find("\nException raised from ");
  return stack == message.npos ? message : message.substr(0, stack);
}

/// Puts the explanation before libtorch's message, which contains the figures. Messages that name the limit need no
/// advice. oneDNN does not report the cause of its errors, so that a hint follows its message.
std::string translated(std::string message) {
  if (message.find("ulimit") != message.npos) return message;
  if (message.find(no_primitive) != message.npos && message.find(no_descriptor) == message.npos) {
    return message + " (This often means that memory ran out; the limit `ulimit -v` is " +
           limit_text(RLIMIT_AS, 1024, " KiB") + ". Use a smaller batch_size, or give the process more memory.)";
  }
  for (const auto& [words, meaning] : translations) {
    const size_t at = message.find(words);
    if (at == message.npos || message.find(meaning) != message.npos) continue;
    return std::string(meaning) + " (" + message + ")";
  }
  return message;
}

}  // namespace

std::string user_message(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return translated(without_stack(torch_error ? torch_error->what_without_backtrace() : error.what()));
}

std::string errno_message(int error_number) {
  std::string number = std::to_string(error_number);
  if (error_number == EMFILE)
    number +=
        "; this process may open " + limit_text(RLIMIT_NOFILE, 1, "") + " files: raise the limit with `ulimit -n`";
  return std::strerror(error_number) + (" (" + number + ")");
}

}  // namespace bellows
