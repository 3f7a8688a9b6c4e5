#include "bellows/graph/program/explanation.h"

#include <algorithm>
#include <sstream>

namespace bellows::graph {
namespace {

constexpr size_t most_causes = 32, columns = 80;

/// Returns: the columns that a text takes; UTF-8 continuation bytes take none
size_t width(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
}

/// Wraps lines that are wider than a terminal, with more indentation. Words are not split.
std::string wrapped(const std::string& text) {
  std::istringstream lines(text);
  std::ostringstream out;
  for (std::string line; std::getline(lines, line);) {
    if (width(line) <= columns) {
      out << line << "\n";
      continue;
    }
    const std::string indent(std::min(line.find_first_not_of(' '), line.size()), ' ');
    std::istringstream words(line);
    std::string now = indent;
    for (std::string word; std::getline(words >> std::ws, word, ' ');) {
      const bool begins = now.find_first_not_of(' ') == std::string::npos;
      if (!begins && width(now) + 1 + width(word) > columns) {
        out << now << "\n";
        now = indent + "    " + word;
      } else {
        now += (begins ? "" : " ") + word;
      }
    }
    out << now << "\n";
  }
  return out.str();
}

void print_causes(std::ostream& out, const char* title, const std::vector<Explanation::Cause>& causes) {
  if (causes.empty()) return;
  out << title << "\n";
  for (const auto& cause : causes) {
    out << "  " << cause.times << " × " << cause.op;
    if (!cause.why.empty()) out << ": " << cause.why;
    out << "\n";
    if (!cause.site.empty()) out << "      called by " << cause.site << "\n";
  }
}

}  // namespace

void detail::count_cause(std::vector<Explanation::Cause>& causes, const std::string& op, const std::string& why,
                         const std::string& site, int64_t times) {
  const auto found = std::find_if(causes.begin(), causes.end(), [&](const auto& cause) {
    return cause.op == op && cause.why == why && cause.site == site;
  });
  if (found != causes.end()) {
    found->times += times;
  } else if (causes.size() < most_causes) {
    causes.push_back({op, why, times, site});
  }
}

std::string detail::advice_for(const Explanation& said) {
  constexpr int64_t long_call = 200;
  const bool changes = said.lifted > 0 || said.barriers > 0 || said.followed_calls < said.calls - 3;
  if (said.followed_calls == 0 || changes || said.followed / said.followed_calls < long_call) return "";
  return "Each call compares " + std::to_string(said.followed / said.followed_calls) +
         " operators with the recording. If your function does the same in each call, the option replay skips this.";
}

Explanation& Explanation::operator+=(const Explanation& other) {
  for (const auto field : {&Explanation::calls,          &Explanation::followed_calls, &Explanation::nested_calls,
                           &Explanation::plain_calls,    &Explanation::recordings,     &Explanation::dropped,
                           &Explanation::abandoned,      &Explanation::recorded,       &Explanation::followed,
                           &Explanation::views,          &Explanation::at_once,        &Explanation::barriers,
                           &Explanation::deferred,       &Explanation::flushes,        &Explanation::programs,
                           &Explanation::program_runs,   &Explanation::results,        &Explanation::never_seen,
                           &Explanation::lifted,         &Explanation::mismatches,     &Explanation::replayed_calls,
                           &Explanation::verified_calls, &Explanation::replay_stops})
    this->*field += other.*field;
  for (const auto list : {&Explanation::mismatch_causes, &Explanation::barrier_causes, &Explanation::replay_causes}) {
    for (const Cause& cause : other.*list)
      detail::count_cause(this->*list, cause.op, cause.why, cause.site, cause.times);
  }
  return *this;
}

std::string Explanation::to_text() const {
  std::ostringstream out;
  out << calls << " calls, " << followed_calls << " followed completely";
  if (nested_calls) out << ", " << nested_calls << " inside another region or checkpoint";
  if (replayed_calls) out << ", " << replayed_calls << " replayed without calling the function";
  if (plain_calls) out << ", " << plain_calls << " ran eagerly, because a program is not expected to be faster";
  out << "\n" << recordings << " recordings kept";
  if (dropped) out << ", " << dropped << " dropped because of the limit of recordings";
  if (abandoned) out << ", " << abandoned << " calls that were too long to record";
  out << "\n"
      << recorded << " operators recorded, " << followed << " followed: " << deferred << " deferred, " << views
      << " views that need no execution, " << at_once << " run immediately, " << barriers << " barriers\n"
      << flushes << " runs of deferred operators computed " << results << " tensors, of which " << never_seen
      << " were no longer referenced\n"
      << lifted << " numbers became inputs, " << mismatches << " operators matched no recording\n";
  if (programs) out << programs << " programs were prepared and ran " << program_runs << " times\n";
  print_causes(out, "mismatches", mismatch_causes);
  print_causes(out, "barriers", barrier_causes);
  if (verified_calls) out << verified_calls << " calls verified replays, which stopped " << replay_stops << " times\n";
  print_causes(out, "not replayed", replay_causes);
  if (!advice.empty()) out << advice << "\n";
  if (!backend.empty()) out << backend << "\n";
  return wrapped(out.str());
}

}  // namespace bellows::graph
