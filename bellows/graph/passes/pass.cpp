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
    TORCH_CHECK_VALUE(known, "run_passes: the name \"", name,
                      "\" in PassOptions::without is not a pass. Expected one of ", all.str());
  }
}

/// Returns the number of bytes that a group reads from an input. The group's instructions may read only a part of it.
size_t bytes_read(const Program& group, size_t input) {
  const size_t all = bytes_of(group.values[group.inputs[input]].geometry);
  size_t total = 0;
  std::vector<const Geometry*> seen;
  for (const Instruction& one : group.instructions) {
    if (one.group) return all;
    for (const auto& argument : one.arguments) {
      for (const Operand& operand : argument.operands) {
        const auto is_same = [&](const Geometry* other) { return *other == operand.geometry; };
        if (operand.value != group.inputs[input] || std::any_of(seen.begin(), seen.end(), is_same)) continue;
        seen.push_back(&operand.geometry);
        total += bytes_of(operand.geometry);
      }
    }
  }
  return std::min(total, all);
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
  for (size_t i = 0; i < instruction.arguments.size(); ++i) {
    const bool part = instruction.group && i < instruction.group->inputs.size();
    if (part) total += bytes_read(*instruction.group, i);
    for (const Operand& operand : instruction.arguments[i].operands) {
      if (!part) add(operand);
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

/// The order: first passes that make programs smaller, then passes that replace operators, then passes that group them.
const std::vector<Pass>& passes() {
  using namespace detail;
  static const std::vector<Pass> all{
      {"composites", "replaces composite operators by the operators that they call", 0, say_composites},
      {"versions", "allocates a new buffer for intermediates that are overwritten completely", 0, renew_values},
      {"evaluation", "replaces batch norm in evaluation by an operator that writes nothing", 0, say_evaluations},
      {"instance norm", "replaces the batch norms of instance norm by an operator that sees the samples", 0,
       say_instance_norms},
      {"constants", "computes operators that depend only on constants once, in advance", 0, fold_constants},
      {"casts", "casts a value once for all views of it", 0, merge_casts},
      {"common", "merges identical computations", 0, merge_common},
      {"dead code", "removes computations whose results are not used", 0, drop_dead_code},
      {"batch norm", "folds batch norm in evaluation into the known weights of the convolution or linear before it",
       1e-4, fold_batch_norm},
      {"attention", "replaces matmul, softmax and matmul by one attention operator", 1e-4, fuse_attention},
      {"linears", "merges linears with known weights and the same input into one matmul", 1e-5, join_linears},
      {"buffers", "gives the parts of a buffer that are written or read separately memory of their own", 0,
       split_buffers},
      {"time steps", "merges the matmuls of all time steps that share a weight, and the sums of their gradients", 1e-5,
       stack_matmuls},
      {"algebra", "removes or combines operators where the result is bit-identical", 0, simplify_algebra},
      {"dead code", "removes computations whose results are not used", 0, drop_dead_code},
      {"loops", "groups pointwise operators, reductions and normalizations that can share a nest of loops", 0,
       fuse_loops},
      {"updates", "groups the updates of many tensors", 0, join_updates},
      {"order", "schedules operators that free memory as early as possible", 0, order_for_memory},
      {"reuse", "lets groups overwrite operands that are not read afterwards", 0, reuse_operands},
  };
  return all;
}

void insert_before(std::string_view name, Pass pass, std::vector<Pass>& list) {
  const auto place = std::find_if(list.begin(), list.end(), [&](const Pass& one) { return one.name == name; });
  TORCH_CHECK_VALUE(place != list.end(), "insert_before: the pass \"", name, "\" is not in the list.");
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
