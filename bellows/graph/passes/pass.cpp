#include "bellows/graph/passes/pass.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "bellows/graph/passes/passes.h"

namespace bellows::graph {
namespace {

size_t bytes_of(const Geometry& geometry) {
  size_t count = geometry.dtype.itemsize();
  for (size_t i = 0; i < geometry.sizes.size(); ++i) {
    if (geometry.strides[i] != 0 || geometry.sizes[i] == 0) count *= static_cast<size_t>(geometry.sizes[i]);
  }
  return count;
}

bool runs(const Pass& pass, const PassOptions& options) {
  const auto& without = options.without;
  return !(options.exact && pass.tolerance > 0) &&
         std::find(without.begin(), without.end(), pass.name) == without.end();
}

void check_names(const PassOptions& options, std::span<const Pass> list) {
  for (const std::string& name : options.without) {
    const bool known = std::any_of(list.begin(), list.end(), [&](const Pass& pass) { return pass.name == name; });
    std::ostringstream all;
    for (const Pass& pass : list) all << (all.tellp() ? ", " : "") << pass.name;
    TORCH_CHECK_VALUE(known, "run_passes: got the name \"", name, "\" in PassOptions::without, expected one of ",
                      all.str());
  }
}

}  // namespace

size_t bytes_moved(const Instruction& instruction) {
  size_t total = 0;
  std::vector<const Operand*> seen;
  const auto add = [&](const Operand& operand) {
    if (operand.value == no_value) return;
    for (const Operand* other : seen) {
      if (*other == operand) return;
    }
    seen.push_back(&operand);
    total += bytes_of(operand.geometry);
  };
  for (const auto& argument : instruction.arguments) {
    for (const Operand& operand : argument.operands) {
      add(operand);
      for (const auto& update : instruction.updates)
        total += update.before == operand.value ? bytes_of(operand.geometry) : 0;
    }
  }
  for (const auto& result : instruction.results) {
    for (const Operand& operand : result.operands) {
      const bool update = std::any_of(instruction.updates.begin(), instruction.updates.end(),
                                      [&](const auto& each) { return each.after == operand.value; });
      if (!update) add(operand);
    }
  }
  return total;
}

size_t bytes_moved(const Program& program) {
  size_t total = 0;
  for (const Instruction& instruction : program.instructions) total += bytes_moved(instruction);
  return total;
}

/// The order: what makes programs smaller, then what replaces operators, then what puts them together.
const std::vector<Pass>& passes() {
  using namespace detail;
  static const std::vector<Pass> all{
      {"composites", "says by its parts what only calls other operators", 0, say_composites},
      {"versions", "gives what a program overwrites whole, and made itself, memory of its own", 0, renew_values},
      {"evaluation", "says of batch norm in evaluation that it writes nothing", 0, say_evaluations},
      {"constants", "computes once what depends on constants only", 0, fold_constants},
      {"casts", "casts a value once, whichever views of it are asked for", 0, merge_casts},
      {"common", "computes once what is computed twice", 0, merge_common},
      {"dead code", "leaves out what nobody reads", 0, drop_dead_code},
      {"batch norm", "folds batch norm in evaluation into the known weights of the convolution or linear before it",
       1e-4, fold_batch_norm},
      {"attention", "puts one operator in the place of products, softmax and products", 1e-4, fuse_attention},
      {"linears", "makes one product of linears with known weights that read the same", 1e-5, join_linears},
      {"algebra", "leaves out operators that change no bit", 0, simplify_algebra},
      {"dead code", "leaves out what nobody reads", 0, drop_dead_code},
      {"loops", "groups pointwise operators, reductions and normalizations that can share a nest of loops", 0,
       fuse_loops},
      {"updates", "groups the updates of many tensors", 0, join_updates},
      {"order", "runs as soon as it can what lets go of more memory than it takes", 0, order_for_memory},
      {"reuse", "lets groups write over operands that nobody reads afterwards", 0, reuse_operands},
  };
  return all;
}

void insert_before(std::string_view name, Pass pass, std::vector<Pass>& list) {
  const auto place = std::find_if(list.begin(), list.end(), [&](const Pass& one) { return one.name == name; });
  TORCH_CHECK_VALUE(place != list.end(), "insert_before: got the pass \"", name, "\", expected one of the list.");
  list.insert(place, std::move(pass));
}

PassReport run_passes(Program& program, const PassOptions& options, std::span<const Pass> list) {
  check_names(options, list);
  PassReport report;
  for (const Pass& pass : list) {
    if (!runs(pass, options)) continue;
    PassReport::Row row{
        .name = pass.name, .instructions_before = program.instructions.size(), .bytes_before = bytes_moved(program)};
    row.fired = pass.run(program, options);
    row.instructions_after = program.instructions.size();
    row.bytes_after = bytes_moved(program);
    report.rows.push_back(row);
    if (!options.check) continue;
    try {
      program.check();
    } catch (c10::Error& error) {
      error.add_context("After the pass \"" + pass.name + "\".");
      throw;
    }
  }
  return report;
}

int64_t PassReport::fired(std::string_view pass) const {
  int64_t times = 0;
  for (const Row& row : rows) times += row.name == pass ? row.fired : 0;
  return times;
}

std::string PassReport::to_text() const {
  std::ostringstream out;
  for (const Row& row : rows) {
    if (!row.fired) continue;
    out << "  " << std::left << std::setw(12) << row.name << std::right << std::setw(6) << row.fired << " times, "
        << row.instructions_before << " -> " << row.instructions_after << " instructions, " << std::fixed
        << std::setprecision(1) << static_cast<double>(row.bytes_before) / 1e6 << " -> "
        << static_cast<double>(row.bytes_after) / 1e6 << " MB moved\n";
  }
  return out.str();
}

}  // namespace bellows::graph
