#include "bellows/compile/codegen/codegen.h"

#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <limits>
#include <map>

#include "bellows/compile/codegen/kernel_prelude.h"
#include "bellows/compile/codegen/phase_writer.h"
#include "bellows/compile/codegen/scalar.h"

namespace bellows::compile_detail {
namespace {

using graph::Expression;

bool can_write(const Expression& expression) {
  return expression.loops.size() < 16 &&
         std::all_of(expression.terms.begin(), expression.terms.end(),
                     [](const auto& term) { return graph::is_known_type(term.type); }) &&
         std::all_of(expression.stores.begin(), expression.stores.end(),
                     [](const auto& store) { return graph::is_known_type(store.type); }) &&
         std::all_of(expression.loops.begin(), expression.loops.end(), [](int64_t size) { return size > 0; });
}

void name_and_wrap(KernelCode::Function& function, const std::string& body) {
  function.symbol = "bellows_" + c10::sha1(body).str().substr(0, 20);
  function.text = c10::str("extern \"C\" void ", function.symbol,
                           "(char* const* operands, char* const* results, const double* numbers, char* scratch, "
                           "const i64* sizes, const double* constants, i64 begin, i64 end) {\n",
                           body, "}\n");
}

KernelCode::Function function_of(const WrittenPhase& phase) {
  KernelCode::Function function;
  function.units = phase.units;
  function.unit_bytes = phase.unit_bytes;
  function.marked = MarkedText::of(phase.body);
  name_and_wrap(function, function.marked.code());
  return function;
}

/// The accesses of an expression to one buffer.
struct Accesses {
  std::vector<int64_t*> offsets;
  int64_t first = std::numeric_limits<int64_t>::max();
  size_t element = 0;
  bool mixed = false;  ///< with elements of different sizes

  void add(int64_t& offset, c10::ScalarType type) {
    const size_t bytes = c10::elementSize(type);
    mixed = mixed || (element != 0 && element != bytes);
    element = bytes;
    first = std::min(first, offset);
    offsets.push_back(&offset);
  }
};

/// Moves the smallest offset of each buffer from an expression to the kernel.
void move_offsets(Expression& expression, KernelCode& code) {
  std::map<std::pair<bool, int>, Accesses> buffers;  // by whether it is a result, and by index
  for (graph::Term& term : expression.terms) {
    if (term.function == graph::Function::load) buffers[{false, term.index}].add(term.offset, term.type);
  }
  for (graph::Store& store : expression.stores) buffers[{!store.update, store.index}].add(store.offset, store.type);
  for (auto& [buffer, accesses] : buffers) {
    if (accesses.mixed || accesses.first == 0) continue;
    for (int64_t* const offset : accesses.offsets) *offset -= accesses.first;
    auto& moved = buffer.first ? code.result_offsets : code.operand_offsets;
    const auto index = static_cast<size_t>(buffer.second);
    if (moved.size() <= index) moved.resize(index + 1, 0);
    moved[index] = accesses.first * static_cast<int64_t>(accesses.element);
  }
}

}  // namespace

void KernelCode::Function::read_numbers(const std::vector<bool>& size_varies,
                                        const std::vector<bool>& constant_varies) {
  name_and_wrap(*this, marked.code(size_varies, constant_varies));
  sizes.clear();
  constants.clear();
  for (size_t i = 0; i < size_varies.size(); ++i) {
    if (size_varies[i]) sizes.push_back(marked.sizes[i]);
  }
  for (size_t i = 0; i < constant_varies.size(); ++i) {
    if (constant_varies[i]) constants.push_back(value_of_literal(marked.constants[i]));
  }
}

std::optional<KernelCode> generate(const Expression& expression) {
  return generate(std::vector<Expression>{expression});
}

std::optional<KernelCode> generate(const std::vector<Expression>& expressions) {
  KernelCode code;
  std::vector<Phase> phases;
  for (Expression expression : expressions) {
    if (!can_write(expression)) return std::nullopt;
    if (expressions.size() == 1) move_offsets(expression, code);
    const auto scheduled = schedule(expression);
    if (!scheduled) return std::nullopt;
    for (Phase phase : scheduled->phases) {
      const auto shift = [&](auto& access) {
        if (access.index >= scratch_index) access.offset += static_cast<int64_t>(code.scratch_bytes);
      };
      std::for_each(phase.nest.terms.begin(), phase.nest.terms.end(), shift);
      std::for_each(phase.nest.stores.begin(), phase.nest.stores.end(), shift);
      phases.push_back(std::move(phase));
    }
    code.scratch_bytes += scheduled->scratch_bytes;
  }
  std::vector<Table> tables;
  if (expressions.size() > 1) {
    tables = make_tables(phases);
  } else {
    for (const Phase& phase : phases) tables.emplace_back().alone = phase;
  }
  code.functions.reserve(tables.size());
  for (const Table& table : tables) code.functions.push_back(function_of(write_table(table)));
  return code;
}

std::string source_of(const std::vector<const KernelCode::Function*>& functions) {
  std::string source(kernel_prelude());
  for (const auto* function : functions) source += function->text;
  return source;
}

}  // namespace bellows::compile_detail
