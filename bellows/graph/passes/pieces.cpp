#include <algorithm>
#include <map>
#include <optional>

#include "bellows/graph/passes/passes.h"
#include "bellows/graph/program/program_edit.h"

namespace bellows::graph::detail {
namespace {

/// Adjacent columns of all rows of a row-major buffer.
struct Columns {
  int64_t first = 0, count = 0;

  int64_t end() const { return first + count; }
  bool overlaps(const Columns& other) const { return first < other.end() && other.first < end(); }
  auto operator<=>(const Columns& other) const = default;
};

/// Returns the columns that a view covers, or nothing if it is not a view of adjacent columns of all rows.
std::optional<Columns> columns_of(const Geometry& whole, const Geometry& seen) {
  const size_t rank = whole.sizes.size();
  if (rank == 0 || seen.sizes.size() != rank || seen.dtype != whole.dtype ||
      seen.keys.has(c10::DispatchKey::Conjugate) || seen.keys.has(c10::DispatchKey::Negative))
    return std::nullopt;
  for (size_t i = 0; i + 1 < rank; ++i) {
    if (seen.sizes[i] != whole.sizes[i] || (seen.sizes[i] != 1 && seen.strides[i] != whole.strides[i]))
      return std::nullopt;
  }
  const Columns found{seen.offset, seen.sizes.back()};
  if ((found.count != 1 && seen.strides.back() != 1) || found.count < 1 || found.end() > whole.sizes.back())
    return std::nullopt;
  return found;
}

/// True for a pointwise operator that computes something, and whose tensors all have one floating-point type.
bool is_pointwise(const Instruction& one) {
  if (!one.op || one.kernel || one.results.size() != 1 || one.results[0].list || !one.op->writes.empty() ||
      !one.op->known || one.op->random || one.op->host_value)
    return false;
  const Geometry& result = one.results[0].operands[0].geometry;
  bool alike = is_floating(result);
  for_each_operand(one, [&](const Operand& operand) { alike = alike && operand.geometry.dtype == result.dtype; });
  if (!alike) return false;
  const auto expression = expression_of(one);
  return expression && !expression->has_reductions() &&
         std::any_of(expression->terms.begin(), expression->terms.end(),
                     [](const Term& term) { return arity(term.function) > 0 && term.function != Function::cast; });
}

/// A buffer that pointwise operators overwrite part by part, such as the gates of a recurrent cell.
struct Chain {
  std::vector<ValueId> versions;  ///< the content before all writes, and after each of them
  std::vector<int> writers;       ///< the instruction that creates version i + 1
  std::vector<Columns> written;   ///< the columns that it writes
};

/// Gives each part of a buffer its own memory, so that operators on different parts can share a loop.
class BufferSplitter {
 public:
  explicit BufferSplitter(Program& program) : program_(program), uses_(program), added_(program.instructions.size()) {}

  /// Splits buffers that are written in parts.
  int64_t split_written() {
    return for_each_buffer([&](ValueId value) { return uses_.overwriter[value] >= 0 && split_writes(value); });
  }
  /// Splits results that are read in parts.
  int64_t split_read() {
    return for_each_buffer([&](ValueId value) { return uses_.overwriter[value] < 0 && split_maker(value); });
  }

 private:
  template <class Split>
  int64_t for_each_buffer(const Split& split) {
    int64_t fired = 0;
    const auto count = static_cast<ValueId>(uses_.maker.size());
    for (ValueId value = 0; value < count; ++value)
      fired += !uses_.update[value] && uses_.maker[value] >= 0 && split(value);
    if (fired) insert_added();
    return fired;
  }

  const Geometry& whole(ValueId value) const { return program_.values[value].geometry; }
  bool is_whole_buffer(ValueId value) const {
    return is_row_major(whole(value)) && covers(whole(value), program_.values[value].nbytes);
  }

  /// Calls visit(reader, operand) for all operands that read the value.
  template <class Visit>
  void for_each_read(ValueId value, const Visit& visit) {
    for (const int reader : uses_.readers[value]) {
      for_each_operand(program_.instructions[reader], [&](Operand& operand) {
        if (operand.value == value) visit(reader, operand);
      });
    }
  }

  bool split_writes(ValueId root) {
    const auto chain = chain_of(root);
    if (!chain || !is_readable(*chain)) return false;
    const ValueId last = chain->versions.back();
    std::vector<Operand> parts;
    for (size_t i = 0; i < chain->writers.size(); ++i) parts.push_back(separate(chain->writers[i]));
    const bool joins = is_read_whole(*chain);
    const ValueId joined = joins ? join(*chain, parts) : no_value;
    for (size_t version = 0; version < chain->versions.size(); ++version) {
      for_each_read(chain->versions[version], [&](int, Operand& operand) {
        const Columns seen = *columns_of(whole(root), operand.geometry);
        if (joins && chain->versions[version] == last && is_all(root, seen)) {
          operand.value = joined;
          return;
        }
        const int part = part_of(*chain, version, seen).value();
        if (part < 0)
          operand.value = root;
        else
          operand = parts[part];
      });
    }
    for (auto& output : program_.outputs) {
      if (output.value == last) output.value = joined;
    }
    return true;
  }

  bool is_all(ValueId root, const Columns& seen) const { return seen.count == whole(root).sizes.back(); }

  /// Returns the writes of a buffer that this program allocates, if pointwise operators write at least two parts of it.
  std::optional<Chain> chain_of(ValueId root) const {
    if (!is_whole_buffer(root) || !is_floating(whole(root)) || uses_.outputs[root]) return std::nullopt;
    Chain chain{.versions = {root}, .writers = {}, .written = {}};
    bool parts = false;
    for (ValueId now = root; uses_.overwriter[now] >= 0; now = chain.versions.back()) {
      const int at = uses_.overwriter[now];
      const Instruction& one = program_.instructions[at];
      if (one.updates.size() != 1 || !is_pointwise(one) || one.results[0].operands[0].value != one.updates[0].after)
        return std::nullopt;
      const auto columns = columns_of(whole(root), one.results[0].operands[0].geometry);
      if (!columns || is_all(root, *columns)) return std::nullopt;
      chain.versions.push_back(one.updates[0].after);
      chain.writers.push_back(at);
      chain.written.push_back(*columns);
      parts = parts || *columns != chain.written[0];
      if (uses_.outputs[now]) return std::nullopt;
    }
    return parts ? std::make_optional(chain) : std::nullopt;
  }

  /// Returns the write that a read of these columns sees, or -1 if they are unchanged. Returns nothing if a write covers
  /// other columns than the read.
  static std::optional<int> part_of(const Chain& chain, size_t version, const Columns& seen) {
    for (size_t i = version; i-- > 0;) {
      if (chain.written[i] == seen) return static_cast<int>(i);
      if (chain.written[i].overlaps(seen)) return std::nullopt;
    }
    return -1;
  }

  bool is_readable(const Chain& chain) {
    const ValueId root = chain.versions[0], last = chain.versions.back();
    bool fine = uses_.outputs[last] <= 1;
    for (size_t version = 0; version < chain.versions.size(); ++version) {
      for_each_read(chain.versions[version], [&](int, const Operand& operand) {
        const auto seen = columns_of(whole(root), operand.geometry);
        fine = fine && seen &&
               (part_of(chain, version, *seen) || (chain.versions[version] == last && is_all(root, *seen)));
      });
    }
    return fine;
  }

  bool is_read_whole(const Chain& chain) {
    bool found = uses_.outputs[chain.versions.back()] > 0;
    for_each_read(chain.versions.back(), [&](int, const Operand& operand) {
      found = found || operand.geometry.sizes.back() == whole(chain.versions[0]).sizes.back();
    });
    return found;
  }

  /// Lets an instruction compute a new value instead of an update.
  Operand separate(int writer) {
    Instruction& one = program_.instructions[writer];
    Operand& result = one.results[0].operands[0];
    result.geometry = row_major(result.geometry);
    result.value = add_value(program_, result.geometry, result.geometry.reach());
    one.updates.clear();
    return result;
  }

  /// Adds an instruction that copies the parts into one buffer, after the last write.
  ValueId join(const Chain& chain, const std::vector<Operand>& parts) {
    const ValueId root = chain.versions[0];
    std::map<Columns, Operand> last;  // of the same columns, the last write
    for (size_t i = 0; i < parts.size(); ++i) last[chain.written[i]] = parts[i];
    Instruction::Argument list{.kind = OperatorFacts::Kind::tensor_list};
    int64_t next = 0;
    const auto add_unchanged = [&](int64_t end) {
      if (next >= end) return;
      Operand rest{root, whole(root)};
      rest.geometry.offset = next;
      rest.geometry.sizes.back() = end - next;
      list.operands.push_back(rest);
    };
    for (const auto& [columns, operand] : last) {
      add_unchanged(columns.first);
      list.operands.push_back(operand);
      next = columns.end();
    }
    add_unchanged(whole(root).sizes.back());
    const Instruction& like = program_.instructions[chain.writers.back()];
    Instruction one{.op = operator_named("aten::cat"), .state = like.state, .default_dtype = like.default_dtype};
    const int64_t dim = static_cast<int64_t>(whole(root).sizes.size()) - 1;
    one.arguments = {std::move(list), {.kind = one.op->arguments[1], .constant = dim}};
    Operand made{add_value(program_, whole(root), program_.values[root].nbytes), whole(root)};
    one.results = {{.operands = {made}}};
    added_[chain.writers.back()].push_back(std::move(one));
    return made.value;
  }

  /// If a pointwise operator's result is only read in parts, computes each part separately.
  bool split_maker(ValueId value) {
    const int at = uses_.maker[value];
    if (!uses_.is_free(value) || uses_.readers[value].size() < 2 || !is_whole_buffer(value) ||
        !program_.instructions[at].updates.empty() || !is_pure(program_.instructions[at]) ||
        !is_pointwise(program_.instructions[at]))
      return false;
    constexpr size_t most_parts = 8;
    std::map<Columns, Operand> parts;
    bool fine = true;
    for_each_read(value, [&](int reader, const Operand& operand) {
      const auto seen = columns_of(whole(value), operand.geometry);
      fine = fine && seen && is_pointwise(program_.instructions[reader]);
      if (fine) parts.emplace(*seen, Operand{});
    });
    fine = fine && parts.size() > 1 && parts.size() <= most_parts;
    const Columns* before = nullptr;
    for (const auto& part : parts) {
      fine = fine && (!before || !before->overlaps(part.first));
      before = &part.first;
    }
    if (!fine || !can_narrow(program_.instructions[at])) return false;
    for (auto& [columns, operand] : parts) operand = add_part(at, columns);
    for_each_read(value,
                  [&](int, Operand& operand) { operand = parts.at(*columns_of(whole(value), operand.geometry)); });
    return true;
  }

  static bool can_narrow(const Instruction& one) {
    const int64_t columns = one.results[0].operands[0].geometry.sizes.back();
    bool fine = true;
    for_each_operand(one, [&](const Operand& operand) {
      const auto& sizes = operand.geometry.sizes;
      fine = fine && (sizes.empty() || sizes.back() == columns || sizes.back() == 1);
    });
    return fine;
  }

  /// Adds a copy of an instruction that computes only some columns.
  Operand add_part(int at, const Columns& columns) {
    Instruction one = program_.instructions[at];
    const int64_t all = one.results[0].operands[0].geometry.sizes.back();
    for_each_operand(one, [&](Operand& operand) {
      Geometry& seen = operand.geometry;
      if (seen.sizes.empty() || seen.sizes.back() != all) return;
      seen.offset += columns.first * seen.strides.back();
      seen.sizes.back() = columns.count;
    });
    Operand& result = one.results[0].operands[0];
    result.geometry.sizes.back() = columns.count;
    result.geometry = row_major(result.geometry);
    result.value = add_value(program_, result.geometry, result.geometry.reach());
    const Operand made = result;
    added_[at].push_back(std::move(one));
    return made;
  }

  /// Inserts the added instructions. The original of a split instruction is removed by the pass "dead code".
  void insert_added() {
    std::vector<Instruction> all;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      all.push_back(std::move(program_.instructions[i]));
      for (Instruction& one : added_[i]) all.push_back(std::move(one));
    }
    program_.instructions = std::move(all);
  }

  Program& program_;
  const Uses uses_;
  std::vector<std::vector<Instruction>> added_;  ///< after each instruction
};

}  // namespace

int64_t split_buffers(Program& program, const PassOptions& options) {
  if (options.exact) return 0;  // nothing would be fused
  const int64_t written = BufferSplitter(program).split_written();
  return written + BufferSplitter(program).split_read();
}

}  // namespace bellows::graph::detail
