#include <algorithm>

#include "bellows/compile/onednn/layouts_impl.h"
#include "bellows/compile/shared_constants.h"
#include "bellows/core/mutex.h"
#include "bellows/graph/passes/linears.h"

namespace bellows::compile_detail::onednn {
namespace {

/// Returns: the stride of rows if all dims except the last can be combined, and the elements of a row are adjacent
std::optional<int64_t> row_stride(const Geometry& geometry) {
  if (geometry.sizes.size() < 2 || (geometry.strides.back() != 1 && geometry.sizes.back() != 1)) return {};
  std::optional<int64_t> stride, expected;
  for (size_t dim = geometry.sizes.size() - 1; dim-- > 0;) {
    if (geometry.sizes[dim] == 1) continue;
    if (expected && geometry.strides[dim] != *expected) return {};
    if (!stride) stride = geometry.strides[dim];
    expected = geometry.strides[dim] * geometry.sizes[dim];
  }
  const int64_t row = geometry.sizes.back();
  if (stride && *stride < row) return {};
  return stride.value_or(row);
}

size_t bytes_before(const Operand& operand) {
  return static_cast<size_t>(operand.geometry.offset) * operand.geometry.dtype.itemsize();
}

/// Requires a dense result, one dtype throughout, and a bias with one number per column. A negative value means no
/// bias.
std::optional<Linear> shape_of_linear(const Operand& input, const Operand& weight, const Operand& bias,
                                      const Operand& result) {
  const auto stride = row_stride(input.geometry);
  Linear made{.inner = input.geometry.sizes.empty() ? 0 : input.geometry.sizes.back(),
              .columns = result.geometry.sizes.empty() ? 0 : result.geometry.sizes.back(),
              .row_stride = stride.value_or(0),
              .offset = bytes_before(input),
              .type = data_type(input.geometry),
              .bias = bias.value >= 0};
  if (!stride || !is_floating(made.type) || !input.geometry.device.is_cpu() || weight.geometry.sizes.size() != 2 ||
      count_of(input.geometry) == 0 || count_of(result.geometry) == 0 || !is_dense_rows(result.geometry))
    return {};
  for (const Operand* other : {&weight, &result, &bias}) {
    if (other->value >= 0 && other->geometry.dtype != input.geometry.dtype) return {};
  }
  const Geometry& vector = bias.geometry;
  if (made.bias &&
      !(vector.sizes.size() == 1 && vector.sizes[0] == made.columns && vector.strides[0] == 1 && vector.offset == 0))
    return {};
  made.rows = count_of(input.geometry) / made.inner;
  return made;
}

/// The weights that BLAS has packed. BLAS packs a weight for one number of rows. Programs for other numbers of rows
/// share the weight that oneDNN packs, so that a weight is packed at most twice.
/// Threads: safe
class BlasPackings {
 public:
  bool has(uint64_t weight) {
    const MutexLock lock(mutex_);
    const auto found = packed_.find(weight);
    return found != packed_.end() && !found->second.expired();
  }
  void add(uint64_t weight, const c10::Storage& storage) {
    const MutexLock lock(mutex_);
    std::erase_if(packed_, [](const auto& one) { return one.second.expired(); });
    packed_.insert_or_assign(weight, storage.getWeakStorageImpl());
  }

 private:
  Mutex mutex_;
  /// By a weight's digest, because joined weights are created again for each program.
  std::unordered_map<uint64_t, c10::weak_intrusive_ptr<c10::StorageImpl>> packed_ BELLOWS_GUARDED_BY(mutex_);
};

BlasPackings& blas_packings() {
  static auto* const made = new BlasPackings;
  return *made;
}

}  // namespace

int64_t count_of(const Geometry& geometry) {
  return c10::multiply_integers(geometry.sizes);
}

bool is_dense_rows(const Geometry& geometry) {
  return geometry.offset == 0 && row_stride(geometry) == geometry.sizes.back();
}

bool sees_all(const Operand& seen, const Operand& made) {
  return seen.value == made.value && seen.geometry.dtype == made.geometry.dtype && is_dense_rows(seen.geometry) &&
         count_of(seen.geometry) == count_of(made.geometry);
}

std::optional<PostOp> post_op_of(const Instruction& one) {
  const std::string& name = one.op->name;
  if (name == "aten::relu") return PostOp{PostOp::Kind::relu};
  if (name == "aten::tanh") return PostOp{PostOp::Kind::tanh};
  if (name == "aten::sigmoid") return PostOp{PostOp::Kind::sigmoid};
  if (name == "aten::silu") return PostOp{PostOp::Kind::silu};
  if (name != "aten::gelu") return {};
  return PostOp{one.arguments[1].constant.toStringRef() == "tanh" ? PostOp::Kind::gelu_tanh : PostOp::Kind::gelu};
}

/// Fuses an addition of the linear's result and an existing operand of the same size.
bool Layouts::take_row_addition(Epilogue& epilogue, const Instruction& one, int at) const {
  if (one.op->name != "aten::add.Tensor" || one.arguments[2].constant != c10::IValue(1)) return false;
  const bool first = sees_all(operand(one, 0), epilogue.result), second = sees_all(operand(one, 1), epilogue.result);
  const Operand& other = operand(one, first ? 1 : 0);
  const Geometry& result = one.results[0].operands[0].geometry;
  if (first == second || maker_[other.value] >= at || !is_dense_rows(other.geometry) ||
      other.geometry.dtype != result.dtype || other.geometry.sizes != result.sizes)
    return false;
  epilogue.post.push_back({PostOp::Kind::add});
  epilogue.added.push_back(other);
  return true;
}

Layouts::Epilogue Layouts::linear_epilogue_of(int at) const {
  Epilogue made{.result = program_.instructions[at].results[0].operands[0]};
  while (made.post.size() < 3) {
    const int reader = sole_reader(made.result.value);
    if (reader < 0 || taken_[reader]) break;
    const Instruction& one = program_.instructions[reader];
    if (!one.op || one.kernel || one.state != program_.instructions[at].state || !all_constant(one) ||
        !one.updates.empty() || one.results.size() != 1 || one.results[0].list)
      break;
    const Operand& result = one.results[0].operands[0];
    if (!whole(result) || result.geometry.dtype != made.result.geometry.dtype || !is_dense_rows(result.geometry) ||
        count_of(result.geometry) != count_of(made.result.geometry))
      break;
    if (const auto activation = post_op_of(one); activation && sees_all(operand(one, 0), made.result)) {
      made.post.push_back(*activation);
    } else if (!take_row_addition(made, one, at)) {
      break;
    }
    made.result = result;
    made.taken.push_back(reader);
  }
  return made;
}

/// A linear of this program, described for the matmul.
struct Layouts::LinearCall {
  Operand input, weight, bias;
  memory::dims strides;  ///< of the weight: inner dim, columns
  Linear shape;
};

std::optional<Layouts::LinearCall> Layouts::linear_call(int at) const {
  const Instruction& one = program_.instructions[at];
  const auto where = graph::linear_of(one);
  if (!where || !constants_.contains(operand(one, where->weight).value) || !whole(one.results[0].operands[0]))
    return {};
  const Operand &input = operand(one, where->input), &weight = operand(one, where->weight);
  const Operand bias = where->bias < 0 ? Operand() : operand(one, where->bias);
  const auto shape = shape_of_linear(input, weight, bias, one.results[0].operands[0]);
  if (!shape) return {};
  const auto& strides = weight.geometry.strides;
  return LinearCall{input, weight, bias,
                    where->transposed ? memory::dims{strides[0], strides[1]} : memory::dims{strides[1], strides[0]},
                    *shape};
}

/// Weights that change stay with libtorch's BLAS, which packs them during the matmul.
bool Layouts::linear(int at) {
  const auto call = linear_call(at);
  if (!call) return false;
  const Epilogue with = linear_epilogue_of(at), without{.result = program_.instructions[at].results[0].operands[0]};
  if (batch_invariant_ && call->shape.type == memory::data_type::f32) {
    row_linear_with(*call, with.adds_only() ? with : without);
    return true;
  }
  if (prefers_blas(call->shape) && blas_linear_with(*call, with.adds_only() ? with : without)) return true;
  return linear_with(*call, with) || (!with.taken.empty() && linear_with(*call, without));
}

bool Layouts::linear_with(const LinearCall& call, const Epilogue& epilogue) {
  const auto pass = linear_forward(call.shape, epilogue.post);
  if (!pass) return false;
  const Desc plain({call.shape.inner, call.shape.columns}, call.shape.type, call.strides);
  put_linear(call, pass->kernel, packed(call.weight, plain, pass->weight), epilogue);
  return true;
}

bool Layouts::blas_linear_with(const LinearCall& call, const Epilogue& epilogue) {
  const uint64_t plain = digest_of(constants_.at(call.weight.value).storage());
  if (call.weight.geometry.offset != 0 || blas_packings().has(plain)) return false;
  const auto made = blas_linear(call.shape, !epilogue.added.empty(), call.strides);
  if (!made) return false;
  const Operand weight = opaque(made->packed_bytes, call.weight.geometry);
  emit("reorder", made->pack, {call.weight}, {weight});
  blas_packings().add(plain, constants_.at(weight.value).storage());
  put_linear(call, made->forward, weight, epilogue);
  return true;
}

void Layouts::row_linear_with(const LinearCall& call, const Epilogue& epilogue) {
  const PackingLinear made = row_linear(call.shape, !epilogue.added.empty(), call.strides, bytes_before(call.weight));
  need_plain(call.weight.value);
  put_linear(call, made.forward, packed_by(made.pack, call.weight, made.packed_bytes), epilogue);
}

void Layouts::put_linear(const LinearCall& call, const KernelPointer& kernel, const Operand& weight,
                         const Epilogue& epilogue) {
  std::vector<Operand> operands{call.input, weight};
  if (call.shape.bias) operands.push_back(call.bias);
  operands.insert(operands.end(), epilogue.added.begin(), epilogue.added.end());
  for (const Operand& each : operands) need_plain(each.value);
  there_[epilogue.result.value] = true;
  emit("linear", kernel, operands, {epilogue.result});
  take(epilogue);
  ++report_.linears;
}

}  // namespace bellows::compile_detail::onednn
