#include "bellows/compile/bisect.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iomanip>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>

#include "bellows/compile/result_distance.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"

namespace bellows::compile_detail {
namespace {

using graph::Instruction;
using graph::Pass;
using graph::Program;

constexpr double noise_factor = 4, share_of_integers = 1e-3;
constexpr size_t most_changes = 6;

std::string_view environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// The parts of a list that commas separate, without spaces at their ends and without empty parts.
std::vector<std::string> split_names(std::string_view list) {
  std::vector<std::string> names;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const std::string_view part = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    const size_t begin = part.find_first_not_of(' ');
    if (begin == part.npos) continue;
    names.emplace_back(part.substr(begin, part.find_last_not_of(' ') + 1 - begin));
  }
  return names;
}

std::string short_number(double number) {
  std::ostringstream out;
  out << std::setprecision(3) << number;
  return out.str();
}

std::string label(const Instruction& one) {
  if (one.kernel) return one.kernel->name();
  if (one.op) return one.op->name;
  std::string text = one.kind + " (";
  if (one.group) {
    for (size_t i = 0; i < one.group->instructions.size() && i < most_changes; ++i)
      text += (i ? ", " : "") + label(one.group->instructions[i]);
    if (one.group->instructions.size() > most_changes) text += ", …";
  }
  return text + ")";
}

/// The counted labels of instructions of `first` that `second` does not have.
std::string labels_only_in(const Program& first, const Program& second) {
  std::map<std::string, int> counts;
  for (const Instruction& one : first.instructions) ++counts[label(one)];
  for (const Instruction& one : second.instructions) --counts[label(one)];
  std::string text;
  size_t listed = 0;
  for (const auto& [name, count] : counts) {
    if (count <= 0) continue;
    if (listed++ == most_changes) return text + ", …";
    text += c10::str(text.empty() ? "" : ", ", count, " × ", name);
  }
  return text;
}

/// The first line of an instruction's text, without the instructions of a group.
std::string first_line(const std::string& text) {
  std::string line = text.substr(0, text.find('\n'));
  line.erase(0, line.find_first_not_of(' '));
  while (!line.empty() && (line.back() == ' ' || line.back() == '{')) line.pop_back();
  return line;
}

/// The first instruction of `after` that `before` does not have, for passes that change only arguments.
std::string changed_lines(const Program& before, const Program& after) {
  std::map<std::string, int> known;
  for (const Instruction& one : before.instructions) ++known[graph::detail::instruction_text(before, one)];
  for (const Instruction& one : after.instructions) {
    const std::string text = graph::detail::instruction_text(after, one);
    if (known[text]-- <= 0) return first_line(text);
  }
  return "";
}

std::string changes(const Program& before, const Program& after) {
  const std::string removed = labels_only_in(before, after), added = labels_only_in(after, before);
  if (!removed.empty() && !added.empty()) return c10::str(" The pass replaces ", removed, " with ", added, ".");
  if (!removed.empty()) return c10::str(" The pass removes ", removed, ".");
  if (!added.empty()) return c10::str(" The pass adds ", added, ".");
  const std::string line = changed_lines(before, after);
  return line.empty() ? "" : " The first instruction that the pass changes: " + line;
}

/// The instruction that computes a value, or null if it is an input or a constant.
const Instruction* maker_of(const Program& program, graph::ValueId value) {
  for (const Instruction& one : program.instructions) {
    for (const auto& update : one.updates) {
      if (update.after == value) return &one;
    }
    for (const auto& result : one.results) {
      for (const auto& operand : result.operands) {
        if (operand.value == value) return &one;
      }
    }
  }
  return nullptr;
}

/// Why a program is wrong.
struct Failure {
  std::string text;
  int output = -1;  ///< index in Program::outputs of the recorded program; -1 after an exception
};

/// Compares optimized programs with the unchanged one.
class Comparison {
 public:
  explicit Comparison(const OptimizationCheck& check) : check_(check) {
    for (const Pass& pass : check.passes) tolerance_ = std::max(tolerance_, check.options.exact ? 0 : pass.tolerance);
  }

  /// Runs the unchanged program. Returns false if it throws an exception.
  bool run_expected() try {
    expected_ = results(std::make_unique<graph::ProgramRunner>(check_.recorded), copies_of(check_.inputs));
    find_noise();
    return true;
  } catch (const std::exception& error) {
    log_info("compile: BELLOWS_BISECT does not check a program, because its operators fail: ", user_message(error));
    return false;
  }

  /// Returns the program after the given passes.
  Program after(std::span<const Pass> passes, graph::Remaining& left) const {
    TORCH_CHECK(!check_.stop.stop_requested(), "compile: stopped while the passes of a program were checked.");
    Program program = check_.recorded;
    left = check_.start(program);
    graph::run_passes(program, check_.options, passes);
    return program;
  }

  /// Returns nothing if a program gives the expected results.
  std::optional<Failure> attempt(std::span<const Pass> passes) const try {
    graph::Remaining left;
    Program program = after(passes, left);
    return failure_of(std::move(program), std::move(left));
  } catch (const std::exception& error) {
    return exception(error);
  }

  std::optional<Failure> failure_of(Program program, graph::Remaining left) const try {
    auto runner = std::make_unique<graph::FrozenRunner>(std::move(program), std::move(left));
    return compare(results(std::move(runner), copies_of(check_.inputs)));
  } catch (const std::exception& error) {
    return exception(error);
  }

 private:
  std::optional<Failure> exception(const std::exception& error) const {
    if (check_.stop.stop_requested()) throw;
    return Failure{c10::str("an exception is thrown: ", user_message(error))};
  }

  std::vector<at::Tensor> results(std::unique_ptr<graph::Executable> executable,
                                  std::vector<c10::Storage> inputs) const {
    std::vector<c10::Storage> given = inputs, outputs(check_.recorded.outputs.size());
    executable->run(given, check_.recorded.numbers, outputs);
    return results_of(check_.recorded, inputs, outputs);
  }

  /// Finds how much results change if each operator makes an error that the tolerance allows.
  void find_noise() {
    noise_.resize(expected_.size());
    std::vector<at::Tensor> again;
    try {
      again = run_with_errors(check_.recorded, copies_of(check_.inputs), tolerance_);
    } catch (const std::exception& error) {  // some operators check the values of their inputs
      return log_debug("compile: BELLOWS_BISECT cannot run a program with errors: ", user_message(error));
    }
    for (size_t i = 0; i < expected_.size(); ++i) {
      if (expected_[i].defined() && again[i].defined()) noise_[i] = Distance::between(expected_[i], again[i]);
    }
  }

  /// Returns the failure of the output that exceeds its limit by the largest factor.
  std::optional<Failure> compare(const std::vector<at::Tensor>& got) const {
    std::optional<Failure> worst;
    double worst_excess = 0;
    for (size_t i = 0; i < expected_.size(); ++i) {
      if (!expected_[i].defined() || !got[i].defined()) continue;
      const Distance distance = Distance::between(expected_[i], got[i]);
      const bool floating = expected_[i].is_floating_point() || expected_[i].is_complex();
      const double amount = floating ? distance.largest : static_cast<double>(distance.elements);
      const double limit = floating ? tolerance_ * distance.scale + noise_factor * noise_[i].largest
                                    : (tolerance_ > 0 ? share_of_integers * double(expected_[i].numel()) : 0) +
                                          noise_factor * static_cast<double>(noise_[i].elements);
      if (amount <= limit) continue;
      const double excess = amount / std::max(limit, 1e-300);
      if (worst && excess <= worst_excess) continue;
      worst_excess = excess;
      worst = Failure{difference_text(i, distance, floating, limit), static_cast<int>(i)};
    }
    return worst;
  }

  std::string difference_text(size_t i, const Distance& distance, bool floating, double limit) const {
    const Program::Output& output = check_.recorded.outputs[i];
    const graph::ValueId value = output.input < 0 ? output.value : check_.recorded.inputs[output.input];
    const std::string name =
        output.input < 0 ? c10::str("output ", i) : c10::str("input ", output.input, ", which the program writes,");
    std::string text = c10::str(name, " (", check_.recorded.values[value].geometry.text(), ") differs by up to ",
                                short_number(distance.largest), " from the unchanged program");
    if (floating)
      return c10::str(text, " (largest value ", short_number(distance.scale), ", allowed ", short_number(limit), ")");
    return c10::str(text, " in ", distance.elements, " of ", expected_[i].numel(), " elements");
  }

  const OptimizationCheck& check_;
  double tolerance_ = 0;
  std::vector<at::Tensor> expected_;
  std::vector<Distance> noise_;
};

/// Searches for the first pass after which a program is wrong.
class Search {
 public:
  Search(const Comparison& comparison, std::span<const Pass> passes) : comparison_(comparison), passes_(passes) {}

  WrongPass find(Failure failure) const {
    auto early = comparison_.attempt({});
    if (passes_.empty() && !early) early = failure;  // results that differ from run to run
    if (early)
      return {"", c10::str("a program is wrong before the first pass: ", early->text,
                           ". The operators run without a compiled program.")};
    size_t right = 0, wrong = passes_.size();
    while (wrong - right > 1) {
      const size_t middle = right + (wrong - right) / 2;
      if (auto found = comparison_.attempt(passes_.first(middle))) {
        wrong = middle;
        failure = std::move(*found);
      } else {
        right = middle;
      }
    }
    const Pass& pass = passes_[wrong - 1];
    return {pass.name, c10::str("the pass \"", pass.name, "\" (", pass.what, ") is wrong: ", failure.text, ".",
                                involved(right, failure),
                                " The program runs without this pass. To always skip the "
                                "pass, set BELLOWS_WITHOUT_PASSES=\"",
                                pass.name, "\".")};
  }

 private:
  /// Describes the instructions that the pass after the first `right` passes changes.
  std::string involved(size_t right, const Failure& failure) const try {
    graph::Remaining left;
    const Program before = comparison_.after(passes_.first(right), left);
    const Program after = comparison_.after(passes_.first(right + 1), left);
    if (const std::string kernel = wrong_kernel(before, after, left); !kernel.empty())
      return c10::str(" The wrong kernel is ", kernel, ".");
    std::string text = changes(before, after);
    const auto place = std::find(left.outputs.begin(), left.outputs.end(), failure.output);
    if (failure.output < 0 || place == left.outputs.end()) return text;
    const Instruction* maker = maker_of(after, after.outputs[place - left.outputs.begin()].value);
    if (maker) text += c10::str(" The different result is computed by ", label(*maker), ".");
    return text;
  } catch (const std::exception&) {
    return "";  // the pass throws
  }

  /// If a pass only adds kernels, returns the first kernel that makes the program wrong.
  std::string wrong_kernel(const Program& before, const Program& after, const graph::Remaining& left) const {
    if (before.instructions.size() != after.instructions.size()) return "";
    std::vector<size_t> added;
    for (size_t i = 0; i < after.instructions.size(); ++i) {
      const Instruction &old = before.instructions[i], &now = after.instructions[i];
      if (old.op != now.op || bool(old.group) != bool(now.group) || (old.kernel && old.kernel != now.kernel)) return "";
      if (!old.kernel && now.kernel) added.push_back(i);
    }
    if (added.empty()) return "";
    size_t right = 0, wrong = added.size();
    while (wrong - right > 1) {
      const size_t middle = right + (wrong - right) / 2;
      Program some = after;
      for (size_t i = middle; i < added.size(); ++i) some.instructions[added[i]].kernel = nullptr;
      (comparison_.failure_of(std::move(some), left) ? wrong : right) = middle;
    }
    const Instruction& one = after.instructions[added[wrong - 1]];
    const std::string text = graph::detail::instruction_text(before, before.instructions[added[wrong - 1]]);
    return c10::str(label(one), ": ", first_line(text));
  }

  const Comparison& comparison_;
  std::span<const Pass> passes_;
};

}  // namespace

PassSettings PassSettings::from_environment(const std::vector<std::string>& known) {
  const std::string_view bisect = environment("BELLOWS_BISECT");
  TORCH_CHECK_VALUE(bisect.empty() || bisect == "0" || bisect == "1", "BELLOWS_BISECT must be 0 or 1, got \"", bisect,
                    "\".");
  PassSettings settings{.bisect = bisect == "1", .without = split_names(environment("BELLOWS_WITHOUT_PASSES"))};
  for (const std::string& name : settings.without) {
    TORCH_CHECK_VALUE(std::find(known.begin(), known.end(), name) != known.end(), "BELLOWS_WITHOUT_PASSES contains \"",
                      name, "\", which is not a pass.", did_you_mean(name, known),
                      " Expected names that commas separate, from this list: ", c10::Join(", ", known), ".");
  }
  return settings;
}

std::vector<Pass> passes_without(const std::vector<std::string>& names, std::span<const Pass> passes) {
  std::vector<Pass> result;
  for (const Pass& pass : passes) {
    if (std::find(names.begin(), names.end(), pass.name) == names.end()) result.push_back(pass);
  }
  return result;
}

std::vector<c10::Storage> copies_of(std::span<const c10::Storage> buffers) {
  std::vector<c10::Storage> copies;
  copies.reserve(buffers.size());
  for (const c10::Storage& buffer : buffers) {
    if (!buffer) {
      copies.emplace_back();
      continue;
    }
    TORCH_CHECK(buffer.device().is_cpu(), "compile: BELLOWS_BISECT works only on the CPU.");
    copies.emplace_back(c10::Storage::use_byte_size_t(), buffer.nbytes(), c10::GetCPUAllocator(), false);
    // Storage::data() is not guarded against reads while operators are pending.
    if (buffer.nbytes() > 0) std::memcpy(copies.back().mutable_data(), buffer.data(), buffer.nbytes());
  }
  return copies;
}

std::vector<WrongPass> find_wrong_passes(const OptimizationCheck& check) {
  Comparison comparison(check);
  std::vector<WrongPass> wrong;
  if (!comparison.run_expected()) return wrong;
  std::vector<Pass> passes;
  for (const Pass& pass : check.passes) {
    if (!check.options.exact || pass.tolerance == 0) passes.push_back(pass);
  }
  while (auto failure = comparison.attempt(passes)) {
    wrong.push_back(Search(comparison, passes).find(std::move(*failure)));
    if (wrong.back().name.empty()) break;
    passes = passes_without({wrong.back().name}, passes);
  }
  return wrong;
}

}  // namespace bellows::compile_detail
