#include "bellows/compile/jit/program_kernels.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <set>
#include <sstream>
#include <thread>

#include "bellows/compile/codegen/codegen.h"
#include "bellows/compile/codegen/schedule.h"
#include "bellows/compile/jit/generated_kernel.h"
#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/system/thread.h"

namespace bellows::compile_detail {
namespace {

using graph::Expression;
using graph::Function;
using graph::Instruction;
using graph::Program;

/// Maximum size of the functions in one source, so that sources compile in parallel
constexpr size_t source_bytes = 40'000;

/// The names of a group's operators, each once.
std::string name_of(const Instruction& one) {
  const auto short_name = [](const graph::OperatorFacts& op) {
    const size_t begin = op.name.find("::");
    return op.name.substr(begin == std::string::npos ? 0 : begin + 2, op.name.find('.') - begin - 2);
  };
  if (one.op) return short_name(*one.op);
  std::vector<std::string> names;
  const auto add = [&](const auto& self, const Program& group) -> void {
    for (const Instruction& inside : group.instructions) {
      if (inside.group) self(self, *inside.group);
      if (!inside.op) continue;
      const std::string name = short_name(*inside.op);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  };
  add(add, *one.group);
  return one.kind + " (" + c10::Join(", ", names) + ")";
}

/// Converts the indices of numbers: in an operator's expression they count its arguments, in a kernel only the numbers.
void count_numbers(const Instruction& one, Expression& expression) {
  for (graph::Term& term : expression.terms) {
    if (term.function != Function::number) continue;
    term.index = static_cast<int>(std::count_if(one.arguments.begin(), one.arguments.begin() + term.index,
                                                [](const auto& argument) { return argument.number >= 0; }));
  }
}

std::optional<KernelCode> code_of(const Instruction& one) {
  if (one.kernel) return std::nullopt;
  for (const auto& argument : one.arguments) {
    if (argument.number >= 0 && argument.constant.isList()) return std::nullopt;
  }
  if (one.group) {
    const size_t inputs = one.group->inputs.size();
    for (size_t i = inputs; i < one.arguments.size(); ++i) {
      if (one.arguments[i].number < 0) return std::nullopt;
    }
    const std::vector<Expression> parts = graph::expressions_of(*one.group);
    return parts.empty() ? std::nullopt : generate(parts);
  }
  auto expression = graph::expression_of(one);
  if (!expression || !is_worth_generating(*expression)) return std::nullopt;
  count_numbers(one, *expression);
  return generate(*expression);
}

struct Planned {
  Instruction* one = nullptr;
  KernelCode code;
};

/// Functions that are compiled together.
using Source = std::vector<const KernelCode::Function*>;

/// Distributes the functions that have no library yet over sources.
std::vector<Source> share_out(const std::vector<Planned>& planned, const std::vector<KernelCode::Function>& further,
                              const Libraries& known) {
  std::vector<Source> sources;
  std::set<std::string> seen;
  size_t bytes = source_bytes;
  const auto add = [&](const KernelCode::Function& function) {
    if (known.contains(function.symbol) || !seen.insert(function.symbol).second) return;
    if (bytes + function.text.size() > source_bytes) {
      sources.emplace_back();
      bytes = 0;
    }
    sources.back().push_back(&function);
    bytes += function.text.size();
  };
  for (const Planned& each : planned) std::for_each(each.code.functions.begin(), each.code.functions.end(), add);
  std::for_each(further.begin(), further.end(), add);
  return sources;
}

/// Returns: the library, or null if it could not be compiled, which is logged once
std::shared_ptr<const Library> library_of(const std::string& source, KernelProvider& provider,
                                          const std::stop_token& stop) {
  static std::atomic<bool> said = false;
  try {
    return provider.load(source, stop);
  } catch (const std::exception& error) {
    if (stop.stop_requested()) throw;
    if (!said.exchange(true))
      log_warn("compile: some kernels could not be compiled; their operators run instead: ", user_message(error));
    return nullptr;
  }
}

void compile_all(const std::vector<Source>& sources, KernelProvider& provider, const std::stop_token& stop,
                 Libraries& libraries) {
  std::vector<std::shared_ptr<const Library>> made(sources.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < sources.size(); i = next++) made[i] = library_of(source_of(sources[i]), provider, stop);
  };
  const size_t workers = std::clamp<size_t>(std::thread::hardware_concurrency(), 2, 8);
  std::vector<std::future<void>> running;
  for (size_t i = 1; i < std::min(workers, sources.size()); ++i) running.push_back(start_async_or_run(work));
  work();
  for (auto& each : running) each.get();
  for (size_t i = 0; i < sources.size(); ++i) {
    for (const auto* function : sources[i]) {
      if (made[i]) libraries.emplace(function->symbol, made[i]);
    }
  }
}

bool has_all(const Libraries& libraries, const KernelCode& code) {
  return std::all_of(code.functions.begin(), code.functions.end(),
                     [&](const auto& function) { return libraries.contains(function.symbol); });
}

}  // namespace

std::string KernelReport::to_text() const {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.2f", compile_s);
  return c10::str("kernels: ", kernels, " for ", functions, " different functions (", functions - compiled,
                  " of them from programs for other sizes), ready after ", seconds, " s; ", left,
                  " groups run as operators\n");
}

bool is_worth_generating(const Expression& expression) {
  const auto scheduled = schedule(expression);
  if (!scheduled) return false;
  for (const Phase& phase : scheduled->phases) {
    int64_t outer = 1, all = 1;
    for (size_t i = 0; i < phase.nest.loops.size(); ++i) {
      all *= phase.nest.loops[i];
      if (i < phase.outer) outer *= phase.nest.loops[i];
    }
    if (outer < 8 && outer < all && all > 65536) return false;  // one thread would do all the work
    int64_t in_order = 0, scattered = 0;
    const auto count = [&](const graph::Term::Numbers& strides) {
      if (strides.empty()) return;
      const bool reduced_last = phase.outer < phase.nest.loops.size();
      const bool near = strides.back() == 1 || (reduced_last && phase.outer > 0 && strides[phase.outer - 1] == 1);
      const bool varies = std::any_of(strides.begin(), strides.end(), [](int64_t stride) { return stride != 0; });
      if (varies && strides.back() != 0) ++(near ? in_order : scattered);
    };
    for (const graph::Term& term : phase.nest.terms) {
      if (term.function == Function::load) count(term.strides);
    }
    for (const graph::Store& store : phase.nest.stores) count(store.strides);
    if (scattered > in_order && all > 4096) return false;
  }
  return true;
}

KernelReport generate_kernels(Program& program, KernelProvider& provider, const std::stop_token& stop,
                              KernelFamily* family) {
  const auto start = std::chrono::steady_clock::now();
  KernelReport report;
  KernelFamily own;
  KernelFamily& used = family ? *family : own;
  std::vector<Planned> planned;
  planned.reserve(program.instructions.size());
  for (Instruction& one : program.instructions) {
    if (auto code = code_of(one))
      planned.push_back({&one, std::move(*code)});
    else
      report.left += one.group && !one.kernel;
  }
  std::vector<KernelCode*> codes;
  codes.reserve(planned.size());
  for (Planned& each : planned) codes.push_back(&each.code);
  const std::vector<KernelCode::Function> further = used.functions.adapt(codes);
  const std::vector<Source> sources = share_out(planned, further, used.libraries);
  compile_all(sources, provider, stop, used.libraries);
  for (const Source& source : sources) report.compiled += static_cast<int64_t>(source.size());
  std::set<std::string> different;
  for (const Planned& each : planned) {
    if (!has_all(used.libraries, each.code)) {
      report.left += bool(each.one->group);
      continue;
    }
    ++report.kernels;
    each.one->kernel = std::make_shared<const GeneratedKernel>(name_of(*each.one), each.code, used.libraries);
    for (const auto& function : each.code.functions) different.insert(function.symbol);
  }
  report.functions = static_cast<int64_t>(different.size());
  report.compile_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace bellows::compile_detail
