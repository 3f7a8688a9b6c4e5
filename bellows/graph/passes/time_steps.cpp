#include <algorithm>
#include <map>
#include <optional>
#include <queue>
#include <sstream>
#include <unordered_map>

#include "bellows/graph/execution/schedule.h"
#include "bellows/graph/passes/expression_maker.h"
#include "bellows/graph/passes/passes.h"

namespace bellows::graph::detail {
namespace {

/// Fewer matmuls are not merged: the copies of their operands would take as long as the matmuls save.
constexpr size_t fewest = 3;
/// Matmuls of more rows use all cores well on their own.
constexpr int64_t most_rows = 256;

bool holds_floats(const Geometry& geometry) {
  return is_dense(geometry) && c10::isFloatingType(geometry.dtype.toScalarType());
}

Geometry matrix(Geometry like, int64_t rows, int64_t columns) {
  like.sizes = {rows, columns};
  like.strides.resize(2);
  return row_major(std::move(like));
}

int64_t rows_of(const std::vector<Operand>& parts) {
  int64_t rows = 0;
  for (const Operand& part : parts) rows += part.geometry.sizes[0];
  return rows;
}

/// If matrices are consecutive rows of one matrix, returns this matrix.
std::optional<Operand> consecutive(const std::vector<Operand>& parts) {
  Operand all = parts[0];
  const int64_t row = all.geometry.strides[0];
  int64_t offset = all.geometry.offset, rows = 0;
  for (const Operand& part : parts) {
    const Geometry& seen = part.geometry;
    if (part.value != all.value || seen.sizes[1] != all.geometry.sizes[1] || seen.offset != offset ||
        seen.strides[0] != row || seen.strides[1] != all.geometry.strides[1])
      return std::nullopt;
    offset += seen.sizes[0] * row;
    rows += seen.sizes[0];
  }
  all.geometry.sizes[0] = rows;
  return all;
}

/// Instructions that are replaced together.
struct Batch {
  enum class Kind { rows, products, sums } kind = Kind::rows;
  std::vector<int> members;     ///< in program order; of products and sums: the instructions to stack
  std::vector<int> additions;   ///< of products and sums: the additions of their results; the total comes last
  std::vector<Operand> others;  ///< of products and sums: further terms of the total
};

/// Merges matmuls of a program whose instructions are repeated for each time step.
class MatmulStacker {
 public:
  explicit MatmulStacker(Program& program)
      : program_(program), schedule_(program), uses_(schedule_.uses()), unit_(program.instructions.size()) {
    for (size_t i = 0; i < unit_.size(); ++i) unit_[i] = static_cast<int>(i);
    used_.assign(unit_.size(), false);
  }

  int64_t run() {
    for (int i = static_cast<int>(unit_.size()) - 1; i >= 0; --i) find_total(i);
    find_rows();
    if (batches_.empty()) return 0;
    write();
    return static_cast<int64_t>(batches_.size());
  }

 private:
  const Instruction& instruction(int at) const { return program_.instructions[at]; }
  const Operand& result(int at) const { return instruction(at).results[0].operands[0]; }
  bool is(int at, const char* op) const { return at >= 0 && calls(instruction(at), op) && is_simple(instruction(at)); }
  bool is_whole(int at) const {
    const Operand& made = result(at);
    return holds_floats(made.geometry) && is_row_major(made.geometry) &&
           covers(made.geometry, program_.values[made.value].nbytes);
  }

  // Sums of matmuls and of column sums

  bool is_addition(int at) const { return is(at, "aten::add.Tensor") && is_one(instruction(at).arguments[2]); }
  /// True for a sum over the rows of a matrix.
  bool is_column_sum(int at) const {
    if (!is(at, "aten::sum.dim_IntList") || !instruction(at).arguments[3].constant.isNone()) return false;
    const auto& dims = instruction(at).arguments[1].constant;
    const Geometry& summed = operand_of(instruction(at), 0).geometry;
    return dims.isIntList() && dims.toIntVector() == std::vector<int64_t>{0} && summed.sizes.size() == 2 &&
           holds_floats(summed) && summed.dtype == result(at).geometry.dtype && summed.sizes[0] <= most_rows;
  }
  /// True for a product of a transposed matrix, as in the gradient of a weight. The rows of both matrices can be stacked.
  bool is_product(int at) const {
    if (!is(at, "aten::mm")) return false;
    const Geometry& left = operand_of(instruction(at), 0).geometry;
    return left.strides[0] == 1 && left.sizes[1] <= most_rows;
  }

  /// Finds the additions that end in the instruction `total`, and merges the matmuls or sums that they add.
  void find_total(int total) {
    if (used_[total] || !is_addition(total) || !is_whole(total)) return;
    std::map<Batch::Kind, Batch> found;
    std::vector<int> additions;
    std::vector<Operand> others;
    collect(total, total, additions, found, others);
    std::sort(additions.begin(), additions.end());
    for (auto& [kind, batch] : found) {
      if (batch.members.size() < fewest || found.size() > 1) continue;
      std::sort(batch.members.begin(), batch.members.end());
      batch.kind = kind;
      batch.additions = additions;
      batch.others = others;
      add_batch(batch);
    }
  }

  void collect(int at, int total, std::vector<int>& additions, std::map<Batch::Kind, Batch>& found,
               std::vector<Operand>& others) {
    additions.push_back(at);
    const bool twice = operand_of(instruction(at), 0).value == operand_of(instruction(at), 1).value;
    for (const size_t argument : {size_t{0}, size_t{1}}) {
      const Operand& term = operand_of(instruction(at), argument);
      const int made = uses_.maker[term.value];
      const bool inside = made >= 0 && !twice && !used_[made] && uses_.read_only_by(term.value, at) &&
                          instruction(made).results.size() == 1 && is_term(term, made, total);
      if (inside && is_addition(made) && result(made).geometry.sizes == result(total).geometry.sizes)
        collect(made, total, additions, found, others);
      else if (inside && is_product(made))
        found[Batch::Kind::products].members.push_back(made);
      else if (inside && is_column_sum(made))
        found[Batch::Kind::sums].members.push_back(made);
      else
        others.push_back(term);
    }
  }

  /// True if an addition reads the complete result of `made`, in order.
  bool is_term(const Operand& term, int made, int total) const {
    return !instruction(made).results[0].list && instruction(made).state == instruction(total).state &&
           is_whole(made) && is_row_major(term.geometry) && term.geometry.dtype == result(total).geometry.dtype &&
           term.geometry.sizes == result(total).geometry.sizes;
  }

  // Matmuls with the same right matrix

  /// Returns: the same text for matmuls that can be one; "" for other instructions
  std::string key_of(int at) const {
    const bool adds = is(at, "aten::addmm");
    if (used_[at] || (!adds && !is(at, "aten::mm")) || !is_whole(at) || !uses_.is_free(result(at).value)) return "";
    const Instruction& one = instruction(at);
    const Operand &left = operand_of(one, adds), &right = operand_of(one, 1 + adds);
    if (left.geometry.sizes[0] > most_rows || left.value == right.value || left.geometry.dtype != right.geometry.dtype)
      return "";
    std::ostringstream key;
    key << one.op->name << " " << one.state << " " << right.value << " " << right.geometry.text();
    if (!adds) return key.str();
    const Operand& bias = operand_of(one, 0);
    if (bias.geometry.sizes.size() != 1 || !is_one(one.arguments[3]) || !is_one(one.arguments[4])) return "";
    key << " " << bias.value << " " << bias.geometry.text();
    return key.str();
  }

  void find_rows() {
    std::map<std::string, std::vector<int>> alike;
    for (size_t i = 0; i < unit_.size(); ++i) {
      const std::string key = key_of(static_cast<int>(i));
      if (!key.empty()) alike[key].push_back(static_cast<int>(i));
    }
    for (const auto& [key, members] : alike) {
      if (members.size() >= fewest) find_rows(members);
    }
  }

  /// Merges the matmuls that do not depend on each other: those before which equally many others must run.
  void find_rows(const std::vector<int>& members) {
    std::vector<bool> counted(unit_.size(), false);
    for (const int member : members) counted[member] = true;
    std::vector<int> depth(unit_.size(), 0);
    for (const int unit : order()) {
      const auto visit = [&](int need) { depth[unit] = std::max(depth[unit], depth[need]); };
      for_each_need(unit, visit);
      depth[unit] += counted[unit];
    }
    std::map<int, Batch> batches;
    for (const int member : members) batches[depth[member]].members.push_back(member);
    for (auto& [level, batch] : batches) {
      if (batch.members.size() >= fewest) add_batch(batch);
    }
  }

  // Units of instructions that run at one place

  template <class Visit>
  void for_each_need(int unit, const Visit& visit) const {
    const auto found = members_.find(unit);
    const auto visit_one = [&](int at) {
      for (const int need : schedule_.needs(at)) {
        if (unit_[need] != unit) visit(unit_[need]);
      }
    };
    if (found == members_.end()) return visit_one(unit);
    for (const int at : found->second) visit_one(at);
  }

  /// Returns the units in a valid order that is close to the original order, or an incomplete list if there is none.
  std::vector<int> order() const {
    const int count = static_cast<int>(unit_.size());
    std::vector<std::vector<int>> users(count);
    std::vector<int> missing(count, 0), result;
    std::priority_queue<int, std::vector<int>, std::greater<>> ready;
    for (int unit = 0; unit < count; ++unit) {
      if (unit_[unit] != unit) continue;
      for_each_need(unit, [&](int need) {
        users[need].push_back(unit);
        ++missing[unit];
      });
      if (missing[unit] == 0) ready.push(unit);
    }
    while (!ready.empty()) {
      const int unit = ready.top();
      ready.pop();
      result.push_back(unit);
      for (const int user : users[unit]) {
        if (--missing[user] == 0) ready.push(user);
      }
    }
    return result;
  }

  /// Adds a batch, unless other instructions would have to run both before and after it.
  void add_batch(const Batch& batch) {
    std::vector<int> all = batch.members;
    all.insert(all.end(), batch.additions.begin(), batch.additions.end());
    std::sort(all.begin(), all.end());
    const int unit = all.back();
    const size_t before = count_units();
    for (const int at : all) unit_[at] = unit;
    members_[unit] = all;
    if (order().size() + all.size() != before + 1) {
      for (const int at : all) unit_[at] = at;
      members_.erase(unit);
      return;
    }
    for (const int at : all) used_[at] = true;
    batch_of_[unit] = batches_.size();
    batches_.push_back(batch);
  }

  size_t count_units() const {
    size_t count = 0;
    for (size_t i = 0; i < unit_.size(); ++i) count += unit_[i] == static_cast<int>(i);
    return count;
  }

  // Writing the program

  void write() {
    for (const int unit : order()) {
      const auto found = batch_of_.find(unit);
      if (found == batch_of_.end()) {
        emitted_.push_back(instruction(unit));
        continue;
      }
      const Batch& batch = batches_[found->second];
      batch.kind == Batch::Kind::rows ? write_rows(batch) : write_total(batch);
    }
    for (Instruction& one : emitted_) for_each_operand(one, [&](Operand& operand) { move(operand); });
    program_.instructions = std::move(emitted_);
  }

  void move(Operand& operand) const {
    const auto moved = moved_.find(operand.value);
    if (moved == moved_.end()) return;
    operand.value = moved->second.first;
    operand.geometry.offset += moved->second.second;
  }

  Operand emit(Instruction one, const Geometry& geometry, ValueId value = no_value) {
    if (value == no_value) value = add_value(program_, geometry, geometry.reach());
    one.results = {{.operands = {{value, geometry}}}};
    emitted_.push_back(std::move(one));
    return {value, geometry};
  }

  /// Returns the rows of all matrices as one matrix. They are copied unless they are consecutive.
  Operand stack(std::vector<Operand> parts, const Instruction& like, bool any_order = false) {
    for (Operand& part : parts) move(part);
    if (const auto all = consecutive(parts)) return *all;
    for (const auto& [known, made] : stacks_) {
      const bool same =
          any_order ? std::is_permutation(known.begin(), known.end(), parts.begin(), parts.end()) : known == parts;
      if (same) return made;
    }
    Instruction one{.op = operator_named("aten::cat"), .state = like.state, .default_dtype = like.default_dtype};
    one.arguments = {{.kind = OperatorFacts::Kind::tensor_list, .operands = parts},
                     {.kind = one.op->arguments[1], .constant = int64_t{0}}};
    const Operand made = emit(std::move(one), matrix(parts[0].geometry, rows_of(parts), parts[0].geometry.sizes[1]));
    stacks_.emplace_back(parts, made);
    return made;
  }

  void write_rows(const Batch& batch) {
    Instruction one = instruction(batch.members[0]);
    const size_t left = calls(one, "aten::addmm");
    std::vector<Operand> parts;
    for (const int member : batch.members) parts.push_back(operand_of(instruction(member), left));
    one.arguments[left].operands = {stack(parts, one)};
    const Geometry& like = result(batch.members[0]).geometry;
    const int64_t columns = like.sizes[1];
    const Operand made = emit(std::move(one), matrix(like, rows_of(parts), columns));
    int64_t row = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      moved_[result(batch.members[i]).value] = {made.value, row * columns};
      row += parts[i].geometry.sizes[0];
    }
  }
  /// Sorts matmuls by their right matrices if these are then consecutive in memory, and otherwise by the left ones.
  std::vector<int> sorted(std::vector<int> members) const {
    for (const size_t argument : {size_t{0}, size_t{1}}) {
      const auto place = [&](int at) {
        Operand one = operand_of(instruction(at), argument);
        move(one);
        return std::pair(one.value, one.geometry.offset);
      };
      std::vector<int> ordered = members;
      std::stable_sort(ordered.begin(), ordered.end(), [&](int a, int b) { return place(a) < place(b); });
      if (argument == 0) members = ordered;
      std::vector<Operand> right = operands(ordered, 1);
      for (Operand& one : right) move(one);
      if (consecutive(right)) return ordered;
    }
    return members;
  }

  std::vector<Operand> operands(const std::vector<int>& members, size_t argument) const {
    std::vector<Operand> all;
    all.reserve(members.size());
    for (const int member : members) all.push_back(operand_of(instruction(member), argument));
    return all;
  }

  void write_total(const Batch& batch) {
    const Operand total = result(batch.additions.back());
    Instruction one = instruction(batch.members[0]);
    if (batch.kind == Batch::Kind::products) {
      const std::vector<int> members = sorted(batch.members);
      std::vector<Operand> left = operands(members, 0);
      for (Operand& part : left) part.geometry = transposed(part.geometry);
      Operand stacked = stack(left, one);
      stacked.geometry = transposed(stacked.geometry);
      one.arguments[0].operands = {stacked};
      one.arguments[1].operands = {stack(operands(members, 1), one)};
    } else {
      one.arguments[0].operands = {stack(operands(batch.members, 0), one, /*any_order=*/true)};
    }
    const Geometry geometry = result(batch.members[0]).geometry;
    Operand sum = emit(std::move(one), geometry, batch.others.empty() ? total.value : no_value);
    sum.geometry = total.geometry;
    for (size_t i = 0; i < batch.others.size(); ++i) {
      Instruction addition = instruction(batch.additions.back());
      addition.arguments[0].operands = {sum};
      addition.arguments[1].operands = {batch.others[i]};
      sum = emit(std::move(addition), total.geometry, i + 1 == batch.others.size() ? total.value : no_value);
    }
  }

  Program& program_;
  const Schedule schedule_;
  const Uses& uses_;
  std::vector<int> unit_;                              ///< for each instruction
  std::unordered_map<int, std::vector<int>> members_;  ///< of units with several instructions
  std::vector<bool> used_;                             ///< in a batch
  std::vector<Batch> batches_;
  std::unordered_map<int, size_t> batch_of_;  ///< by unit
  std::vector<Instruction> emitted_;
  std::vector<std::pair<std::vector<Operand>, Operand>> stacks_;
  std::unordered_map<ValueId, std::pair<ValueId, int64_t>> moved_;  ///< values that are now rows of another value
};

}  // namespace

int64_t stack_matmuls(Program& program, const PassOptions&) {
  return MatmulStacker(program).run();
}

}  // namespace bellows::graph::detail
