#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <unordered_set>

#include "bellows/compile/onednn/layouts_impl.h"
#include "bellows/graph/passes/expression.h"
#include "bellows/graph/program/constant_store.h"
#include "bellows/kernels/parallel.h"

namespace bellows::compile_detail {
namespace onednn {
namespace {

using Order = std::array<size_t, 4>;

/// True if the dims are dense in this order, outermost first.
bool dense_in(const Geometry& geometry, const Order& order) {
  int64_t expected = 1;
  for (size_t i = 4; i-- > 0;) {
    const size_t dim = order[i];
    if (geometry.sizes[dim] != 1 && geometry.strides[dim] != expected) return false;
    expected *= geometry.sizes[dim];
  }
  return true;
}

size_t bytes_of(const Geometry& geometry) {
  return static_cast<size_t>(c10::multiply_integers(geometry.sizes)) * geometry.dtype.itemsize();
}

bool is_pointwise(const Instruction& one) {
  if (one.op && one.op->name == "aten::cat") return false;  // depends on the order of dims
  const auto expression = graph::expression_of(one);
  return expression && !expression->has_reductions();
}

/// Concatenates the channels of channels-last images of the same size.
class ChannelCat final : public graph::Kernel {
 public:
  /// Params: places – of all samples; widths – bytes per place of each image
  ChannelCat(int64_t places, std::vector<size_t> widths)
      : places_(places),
        widths_(std::move(widths)),
        width_(std::accumulate(widths_.begin(), widths_.end(), size_t{0})) {}
  std::string name() const override { return "cat of channels"; }

  void run(std::span<void* const> operands, std::span<void* const> results, std::span<const c10::IValue>,
           void*) const override {
    constexpr size_t task_bytes = 1 << 16;
    const auto grain = static_cast<int64_t>(1 + task_bytes / width_);
    kernels::parallel_ranges(places_, grain, [&](int64_t first, int64_t last) {
      char* to = static_cast<char*>(results[0]) + static_cast<size_t>(first) * width_;
      for (int64_t place = first; place < last; ++place) {
        for (size_t i = 0; i < widths_.size(); to += widths_[i++])
          std::memcpy(to, static_cast<const char*>(operands[i]) + static_cast<size_t>(place) * widths_[i], widths_[i]);
      }
    });
  }

 private:
  int64_t places_;
  std::vector<size_t> widths_;
  size_t width_;
};

/// Whether libtorch's kernel of an operator that is not pointwise keeps the order of images.
bool keeps_order(const std::string& name) {
  static const std::unordered_set<std::string> names{"aten::cat",
                                                     "aten::upsample_bilinear2d",
                                                     "aten::upsample_bilinear2d_backward",
                                                     "aten::upsample_nearest2d",
                                                     "aten::upsample_nearest2d_backward",
                                                     "aten::reflection_pad2d",
                                                     "aten::reflection_pad2d_backward"};
  return names.contains(name);
}

template <class Predicate>
bool any_operand(const Instruction& one, const Predicate& predicate) {
  return std::any_of(one.arguments.begin(), one.arguments.end(), [&](const Instruction::Argument& argument) {
    return std::any_of(argument.operands.begin(), argument.operands.end(), predicate);
  });
}

/// Params: sizes – of the results, in bytes
std::vector<at::Tensor> results_of(const graph::Kernel& kernel, std::span<const c10::Storage> operands,
                                   std::span<const size_t> sizes, PackedMemory& memory) {
  std::vector<void*> from, to;
  std::vector<at::Tensor> made;
  for (const c10::Storage& operand : operands) from.push_back(const_cast<void*>(operand.data()));
  for (const size_t size : sizes) {
    made.push_back(memory.take(size));
    to.push_back(made.back().mutable_data_ptr());
  }
  const at::Tensor scratch = at::empty({static_cast<int64_t>(kernel.scratch_bytes())}, at::kByte);
  kernel.run(from, to, {}, scratch.mutable_data_ptr());
  return made;
}

}  // namespace

Geometry channels_last_geometry(const Geometry& geometry) {
  Geometry made = geometry;
  const int64_t c = geometry.sizes[1], h = geometry.sizes[2], w = geometry.sizes[3];
  made.strides = {h * w * c, 1, w * c, c};
  made.offset = 0;
  return made;
}

bool is_channels_last(const Geometry& geometry) {
  return dense_in(geometry, {0, 2, 3, 1});
}

bool is_plain_order(const Geometry& geometry) {
  return dense_in(geometry, {0, 1, 2, 3});
}

memory::dims pair_of(const Instruction::Argument& argument, int64_t otherwise) {
  const auto list = argument.constant.isNone() ? std::vector<int64_t>{} : argument.constant.toIntVector();
  if (list.empty()) return {otherwise, otherwise};
  return {list.front(), list.back()};
}

bool all_constant(const Instruction& one) {
  return std::all_of(one.arguments.begin(), one.arguments.end(),
                     [](const auto& argument) { return argument.number < 0; });
}

Layouts::Layouts(Program& program, bool batch_invariant)
    : program_(program),
      batch_invariant_(batch_invariant),
      readers_(program.values.size()),
      maker_(program.values.size(), -1),
      is_output_(program.values.size()),
      of_caller_(program.values.size()),
      there_(program.values.size()),
      taken_(program.instructions.size()) {
  const auto before = [&](ValueId value) { of_caller_[value] = there_[value] = true; };
  std::for_each(program.inputs.begin(), program.inputs.end(), before);
  for (const auto& constant : program.constants) {
    before(constant.value);
    constants_[constant.value] = constant.tensor;
  }
  for (const auto& output : program.outputs) is_output_[output.value] = true;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const int at = static_cast<int>(i);
    const auto read = [&](ValueId value) {
      if (value >= 0 && (readers_[value].empty() || readers_[value].back() != at)) readers_[value].push_back(at);
    };
    for (const auto& argument : program.instructions[i].arguments) {
      for (const Operand& operand : argument.operands) read(operand.value);
    }
    for (const auto& update : program.instructions[i].updates) {
      read(update.before);
      of_caller_[update.after] = of_caller_[update.before];
      maker_[update.after] = at;
    }
    for (const auto& result : program.instructions[i].results) {
      for (const Operand& operand : result.operands) {
        if (operand.value >= 0 && maker_[operand.value] < 0 && !there_[operand.value]) maker_[operand.value] = at;
      }
    }
  }
}

OnednnReport Layouts::run() {
  for (size_t i = 0; i < program_.instructions.size(); ++i) {
    if (taken_[i]) continue;
    state_ = program_.instructions[i].state;
    late_ = program_.instructions[i].late;
    if (!replace(static_cast<int>(i))) keep(static_cast<int>(i));
  }
  for (const auto& output : program_.outputs) need_plain(output.value);
  program_.instructions = std::move(made_);
  drop_unread_constants();
  return report_;
}

/// Removes constants that nothing reads any more, such as plain copies of packed weights.
void Layouts::drop_unread_constants() {
  std::vector<bool> read(program_.values.size());
  for (const auto& output : program_.outputs) read[output.value] = true;
  for (const Instruction& one : program_.instructions) {
    for (const auto& argument : one.arguments) {
      for (const Operand& operand : argument.operands) {
        if (operand.value >= 0) read[operand.value] = true;
      }
    }
    for (const auto& update : one.updates) read[update.before] = true;
  }
  std::erase_if(program_.constants, [&](const auto& constant) { return !read[constant.value]; });
}

bool Layouts::replace(int at) {
  const Instruction& one = program_.instructions[at];
  if (!one.op || one.kernel || one.group || !program_.states[one.state].dispatch_state.onednn) return false;
  using Rule = bool (Layouts::*)(int);
  static const std::unordered_map<std::string, Rule> rules{
      {"aten::convolution", &Layouts::convolution},
      {"aten::convolution_backward", &Layouts::convolution_backward},
      {"aten::native_batch_norm", &Layouts::batch_norm},
      {"aten::_native_batch_norm_legit_no_training", &Layouts::batch_norm},
      {"aten::native_batch_norm_backward", &Layouts::batch_norm_backward},
      {"aten::native_group_norm", &Layouts::sample_norm},
      {"aten::native_group_norm_backward", &Layouts::sample_norm},
      {"bellows::instance_norm", &Layouts::sample_norm},
      {"bellows::instance_norm_backward", &Layouts::sample_norm},
      {"aten::threshold_backward", &Layouts::relu_backward},
      {"aten::max_pool2d_with_indices", &Layouts::max_pool},
      {"aten::max_pool2d_with_indices_backward", &Layouts::max_pool_backward},
      {"aten::avg_pool2d", &Layouts::average_pool},
      {"aten::avg_pool2d_backward", &Layouts::average_pool_backward},
      {"aten::cat", &Layouts::concatenate},
      {"aten::linear", &Layouts::linear},
      {"aten::addmm", &Layouts::linear},
      {"aten::mm", &Layouts::linear},
      {"aten::bmm", &Layouts::batched_product},
      {"bellows::quantized_linear", &Layouts::quantized_linear},
      {"bellows::quantized_convolution", &Layouts::quantized_convolution},
  };
  const auto rule = rules.find(one.op->name);
  if (rule == rules.end()) return follow(at);
  return all_constant(one) && (this->*rule->second)(at);
}

void Layouts::keep(int at) {
  const Instruction& one = program_.instructions[at];
  for (const auto& argument : one.arguments) {
    for (const Operand& operand : argument.operands) need_plain(operand.value);
  }
  for (const auto& update : one.updates) {
    need_plain(update.before);
    there_[update.after] = true;
  }
  for (const auto& result : one.results) {
    for (const Operand& operand : result.operands) {
      if (operand.value >= 0) there_[operand.value] = true;
    }
  }
  made_.push_back(one);
}

const Operand& Layouts::operand(const Instruction& one, size_t argument) const {
  static const Operand none;
  const auto& operands = one.arguments[argument].operands;
  return operands.empty() ? none : operands.front();
}

bool Layouts::is_image(const Operand& operand) const {
  if (operand.value < 0) return false;
  const Geometry& geometry = operand.geometry;
  if (geometry.sizes.size() != 4 || !geometry.device.is_cpu() || data_type(geometry) == memory::data_type::undef ||
      c10::multiply_integers(geometry.sizes) == 0)
    return false;
  return is_plain_order(geometry) || (is_channels_last(geometry) && geometry.offset == 0);
}

/// True if the operand is the only content of its buffer.
bool Layouts::whole(const Operand& operand) const {
  return operand.geometry.offset == 0 && bytes_of(operand.geometry) == program_.values[operand.value].nbytes;
}

/// True if the results may move to other buffers: they are images of equal sizes that cover their buffers, and do not
/// belong to the caller.
bool Layouts::owned(const Instruction& one) const {
  const auto is_own = [&](const Instruction::Result& made) {
    if (made.list || !is_image(made.operands[0])) return false;
    const Operand& result = made.operands[0];
    return whole(result) && !of_caller_[result.value] &&
           result.geometry.sizes == one.results[0].operands[0].geometry.sizes;
  };
  const auto is_of_result = [&](const Instruction::Update& update) {
    return std::any_of(one.results.begin(), one.results.end(),
                       [&](const auto& made) { return update.after == made.operands[0].value; });
  };
  return !one.results.empty() && std::all_of(one.results.begin(), one.results.end(), is_own) &&
         std::all_of(one.updates.begin(), one.updates.end(), is_of_result);
}

Operand Layouts::channels_last_of(const Operand& operand) {
  join(operand.value);
  if (is_channels_last(operand.geometry) && operand.geometry.offset == 0) {
    need_plain(operand.value);
    return {operand.value, channels_last_geometry(operand.geometry)};
  }
  const auto found = twins_.find(operand.value);
  if (found != twins_.end() && found->second.plain == operand.geometry) return found->second.operand;
  const Geometry wanted = channels_last_geometry(operand.geometry);
  if (const auto part = part_of_twin(operand)) {
    const auto known =
        std::find_if(parts_.begin(), parts_.end(), [&](const auto& one) { return one.first == operand; });
    if (known != parts_.end()) return known->second;
    const Operand made = temporary(wanted);
    const size_t offset = static_cast<size_t>(part->geometry.offset) * wanted.dtype.itemsize();
    emit("reorder", make_reorder(desc_of(part->geometry), desc_of(wanted), "part of channels", offset), {*part},
         {made});
    parts_.emplace_back(operand, made);
    return made;
  }
  need_plain(operand.value);
  const Operand made = temporary(wanted);
  Geometry from = operand.geometry;
  const size_t offset = static_cast<size_t>(from.offset) * from.dtype.itemsize();
  emit("reorder", make_reorder(desc_of(from), desc_of(wanted), "to channels last", offset), {operand}, {made});
  twins_.insert_or_assign(operand.value, Twin{made, operand.geometry});
  return made;
}

Operand Layouts::made_channels_last(const Operand& result) {
  const Geometry wanted = channels_last_geometry(result.geometry);
  if (is_channels_last(result.geometry)) {
    there_[result.value] = true;
    return {result.value, wanted};
  }
  const Operand made = temporary(wanted);
  twins_.insert_or_assign(result.value, Twin{made, result.geometry});
  return made;
}

void Layouts::need_plain(ValueId value) {
  join(value);
  if (value < 0 || value >= static_cast<ValueId>(there_.size()) || there_[value]) return;
  const auto found = twins_.find(value);
  if (found == twins_.end()) return;
  const Twin twin = found->second;
  there_[value] = true;
  emit("reorder", make_reorder(desc_of(twin.operand.geometry), desc_of(twin.plain), "from channels last"),
       {twin.operand}, {{value, twin.plain}});
}

Operand Layouts::temporary(const Geometry& geometry) {
  program_.values.push_back({geometry, bytes_of(geometry)});
  return {static_cast<ValueId>(program_.values.size() - 1), geometry};
}

Operand Layouts::opaque(size_t nbytes, const Geometry& like) {
  Geometry geometry = like;
  geometry.sizes = {static_cast<int64_t>(nbytes / geometry.dtype.itemsize())};
  geometry.strides = {1};
  geometry.offset = 0;
  program_.values.push_back({geometry, nbytes});
  return {static_cast<ValueId>(program_.values.size() - 1), geometry};
}

Operand Layouts::packed(const Operand& weight, const Desc& plain, const Desc& wanted, const Operand* factor) {
  if (plain == wanted && !factor && weight.geometry.offset == 0) return weight;
  auto& known = packed_[weight.value];
  const bool shares = !factor && !late_;  // a repeated operator packs again, so that the packed weight is not kept
  if (shares) {
    const auto found = std::find_if(known.begin(), known.end(), [&](const Packed& one) {
      return one.weight == weight && one.plain == plain && one.wanted == wanted;
    });
    if (found != known.end()) return found->made;
  }
  const Operand made = opaque(wanted.get_size(), weight.geometry);
  const size_t offset = static_cast<size_t>(weight.geometry.offset) * weight.geometry.dtype.itemsize();
  std::vector<Operand> operands{weight};
  if (factor) operands.push_back(*factor);
  const int mask = !factor ? 0 : plain.get_ndims() == 5 ? 3 : 1;
  emit("reorder", make_reorder(plain, wanted, "pack weight", offset, mask), operands, {made});
  if (shares) known.push_back({weight, made, plain, wanted});
  return made;
}

Operand Layouts::packed_by(const KernelPointer& pack, const Operand& weight, size_t nbytes) {
  const Desc wanted({static_cast<memory::dim>(nbytes)}, memory::data_type::u8, memory::format_tag::a);
  auto& known = packed_[weight.value];
  const auto found = std::find_if(known.begin(), known.end(), [&](const Packed& one) {
    return one.weight == weight && one.plain == Desc() && one.wanted == wanted;
  });
  if (!late_ && found != known.end()) return found->made;
  const Operand made = opaque(nbytes, weight.geometry);
  emit("reorder", pack, {weight}, {made});
  if (!late_) known.push_back({weight, made, Desc(), wanted});
  return made;
}

int Layouts::sole_reader(ValueId value) const {
  return !is_output_[value] && readers_[value].size() == 1 ? readers_[value].front() : -1;
}

void Layouts::emit(const char* kind, KernelPointer kernel, const std::vector<Operand>& operands,
                   const std::vector<Operand>& results, std::vector<Instruction::Update> updates) {
  const bool reorder = std::string_view(kind) == "reorder";
  if (updates.empty() && compute_now(*kernel, operands, results)) {
    report_.packed += reorder ? 1 : 0;
    return;
  }
  report_.reorders += reorder ? 1 : 0;
  Instruction one{
      .kernel = std::move(kernel), .kind = kind, .updates = std::move(updates), .state = state_, .late = late_};
  one.arguments.reserve(operands.size());
  for (const Operand& operand : operands)
    one.arguments.push_back({.kind = graph::OperatorFacts::Kind::tensor, .operands = {operand}});
  one.results.reserve(results.size());
  for (const Operand& result : results) one.results.push_back({.operands = {result}});
  made_.push_back(std::move(one));
}

/// Computes kernels that depend only on constants in advance. Their results become constants.
bool Layouts::compute_now(const graph::Kernel& kernel, const std::vector<Operand>& operands,
                          const std::vector<Operand>& results) {
  std::vector<c10::Storage> from;
  from.reserve(operands.size());
  for (const Operand& operand : operands) {
    const auto found = constants_.find(operand.value);
    if (found == constants_.end()) return false;
    from.push_back(found->second.storage());
  }
  std::vector<size_t> sizes;
  sizes.reserve(results.size());
  for (const Operand& result : results) sizes.push_back(program_.values[result.value].nbytes);
  const auto made = graph::stored_or_computed(kernel.identity(), from, sizes,
                                              [&] { return results_of(kernel, from, sizes, packed_memory_); });
  for (size_t i = 0; i < results.size(); ++i) {
    constants_[results[i].value] = made[i];
    program_.constants.push_back({results[i].value, made[i]});
  }
  return true;
}

std::optional<Operand> Layouts::part_of_twin(const Operand& operand) const {
  const auto found = twins_.find(operand.value);
  if (found == twins_.end()) return {};
  const Geometry &plain = found->second.plain, &last = found->second.operand.geometry, &seen = operand.geometry;
  if (seen.strides != plain.strides || seen.dtype != plain.dtype || !is_plain_order(plain)) return {};
  Operand part{found->second.operand.value, seen};
  part.geometry.strides = last.strides;
  part.geometry.offset = 0;
  int64_t rest = seen.offset - plain.offset;
  for (size_t dim = 0; dim < 4; ++dim) {
    const int64_t first = rest / plain.strides[dim];
    rest %= plain.strides[dim];
    if (first + seen.sizes[dim] > plain.sizes[dim]) return {};
    part.geometry.offset += first * last.strides[dim];
  }
  return part;
}

/// True if the image exists only in oneDNN's order.
bool Layouts::waits(const Operand& operand) const {
  const auto found = twins_.find(operand.value);
  return found != twins_.end() && !there_[operand.value] &&
         (found->second.plain == operand.geometry || part_of_twin(operand));
}

/// True if libtorch's operator returns results of the expected memory order, as far as this can be determined without
/// data.
bool Layouts::keeps_image_order(const Instruction& one) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard untapped(
      c10::DispatchKeySet{c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot});
  const auto meta = [](const Operand& operand) {
    if (operand.value < 0) return at::Tensor();
    const Geometry& g = operand.geometry;
    at::Tensor made = at::empty_strided(g.sizes, g.strides, at::TensorOptions(c10::kMeta).dtype(g.dtype));
    if (g.wrapped_number) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
  };
  std::vector<c10::IValue> stack;
  stack.reserve(one.arguments.size());
  for (const auto& argument : one.arguments) {
    if (!argument.is_tensors()) {
      stack.push_back(argument.number >= 0 ? program_.numbers[argument.number] : argument.constant);
    } else if (argument.kind == graph::OperatorFacts::Kind::tensor) {
      stack.emplace_back(meta(argument.operands.at(0)));
    } else {
      c10::List<at::Tensor> list;
      for (const Operand& operand : argument.operands) list.push_back(meta(operand));
      stack.emplace_back(std::move(list));
    }
  }
  try {
    one.op->handle->callBoxed(stack);
  } catch (const c10::Error&) {
    return true;  // unknown; if the order differs, the program runner copies the result
  }
  bool keeps = stack.size() == one.results.size();
  for (size_t i = 0; keeps && i < stack.size(); ++i) {
    keeps = stack[i].isTensor() &&
            stack[i].toTensor().strides() == at::IntArrayRef(one.results[i].operands[0].geometry.strides);
  }
  return keeps;
}

/// Gives an instruction the images that it takes in oneDNN's order, and the plain values of all other operands.
/// Params: takes – whether an operand of `before` is such an image, or a part of one; copies do not change the answer
void Layouts::read_images(Instruction& changed, const Instruction& before, const TakesImage& takes) {
  for (size_t i = 0; i < before.arguments.size(); ++i) {
    for (size_t j = 0; j < before.arguments[i].operands.size(); ++j) {
      const Operand& operand = before.arguments[i].operands[j];
      if (takes(operand)) {
        changed.arguments[i].operands[j] = is_image(operand) ? channels_last_of(operand) : *part_of_twin(operand);
      } else {
        need_plain(operand.value);
      }
    }
  }
}

/// Lets an operator work in oneDNN's order. This is possible for pointwise operators if all images have the same order,
/// and for operators whose libtorch kernels keep the order.
bool Layouts::follow(int at) {
  const Instruction& one = program_.instructions[at];
  if (!one.op->writes.empty()) return false;
  if (!owned(one)) return reduce_twins(at);
  const Operand& result = one.results[0].operands[0];
  const bool any_size = keeps_order(one.op->name);
  const auto takes_part = [&](const Operand& operand) {
    return (is_image(operand) || part_of_twin(operand)) &&
           (any_size || operand.geometry.sizes == result.geometry.sizes);
  };
  const bool asked = any_operand(one, [&](const Operand& operand) { return takes_part(operand) && waits(operand); });
  if (!asked || !(any_size || is_pointwise(one))) return false;
  Instruction changed = one;
  changed.updates.clear();
  for (auto& argument : changed.arguments) {
    for (Operand& operand : argument.operands) {
      if (!takes_part(operand)) continue;
      operand.geometry = is_image(operand) ? channels_last_geometry(operand.geometry) : part_of_twin(operand)->geometry;
    }
  }
  for (auto& made : changed.results) made.operands[0].geometry = channels_last_geometry(made.operands[0].geometry);
  if (!keeps_image_order(changed)) return false;
  read_images(changed, one, takes_part);
  for (size_t i = 0; i < one.results.size(); ++i)
    changed.results[i].operands[0] = made_channels_last(one.results[i].operands[0]);
  made_.push_back(std::move(changed));
  ++report_.followed;
  return true;
}

/// Lets group norm, instance norm, or their gradients, read and make images in oneDNN's order.
bool Layouts::sample_norm(int at) {
  const Instruction& one = program_.instructions[at];
  const Operand& result = one.results[0].operands[0];
  const auto image = [&](const Operand& operand) {
    return is_image(operand) && operand.geometry.sizes == result.geometry.sizes;
  };
  const bool asked = any_operand(one, [&](const Operand& operand) { return image(operand) && waits(operand); });
  if (!asked || !is_image(result) || !whole(result) || of_caller_[result.value] || !one.updates.empty()) return false;
  Instruction changed = one;
  read_images(changed, one, image);
  changed.results[0].operands[0] = made_channels_last(result);
  made_.push_back(std::move(changed));
  ++report_.followed;
  return true;
}

/// Lets a reduction read the twins of images, if its results do not depend on their order.
bool Layouts::reduce_twins(int at) {
  const Instruction& one = program_.instructions[at];
  const auto twin = [&](const Operand& operand) {
    const auto found = twins_.find(operand.value);
    return is_image(operand) && found != twins_.end() && found->second.plain == operand.geometry;
  };
  const auto waiting = [&](const Operand& operand) { return twin(operand) && waits(operand); };
  if (!one.updates.empty() || !any_operand(one, waiting)) return false;
  for (const auto& made : one.results) {
    if (made.list || made.operands[0].value < 0) return false;
  }
  Instruction changed = one;
  for (auto& argument : changed.arguments) {
    for (Operand& operand : argument.operands) {
      if (twin(operand)) operand.geometry = channels_last_geometry(operand.geometry);
    }
  }
  const auto expression = graph::expression_of(changed);
  if (!expression || !expression->has_reductions()) return false;
  read_images(changed, one, twin);
  made_.push_back(std::move(changed));
  ++report_.followed;
  return true;
}

/// Postpones a concatenation until its result is needed. A convolution may not need it (convolve_parts).
bool Layouts::concatenate(int at) {
  const Instruction& one = program_.instructions[at];
  const auto& images = one.arguments[0].operands;
  const int64_t dim = one.arguments[1].constant.toInt();
  if (!owned(one) || (dim != 1 && dim != -3)) return follow(at);
  const Operand& result = one.results[0].operands[0];
  for (const Operand& image : images) {
    if (!is_image(image) || image.geometry.dtype != result.geometry.dtype) return follow(at);
  }
  if (std::none_of(images.begin(), images.end(), [&](const Operand& image) { return waits(image); })) return false;
  cats_[result.value] = at;
  if (!may_wait(at)) join(result.value);
  return true;
}

/// True if only a convolution reads the concatenation, and its parts are not overwritten before.
bool Layouts::may_wait(int at) const {
  const Instruction& one = program_.instructions[at];
  const Operand& result = one.results[0].operands[0];
  const int reader = sole_reader(result.value);
  if (reader < 0 || taken_[reader] || !program_.instructions[reader].op) return false;
  if (program_.instructions[reader].op->name != "aten::convolution") return false;
  const auto& images = one.arguments[0].operands;
  const auto is_part = [&](const auto& update) {
    return std::any_of(images.begin(), images.end(), [&](const auto& image) { return image.value == update.before; });
  };
  for (int between = at + 1; between < reader; ++between) {
    const auto& updates = program_.instructions[between].updates;
    if (std::any_of(updates.begin(), updates.end(), is_part)) return false;
  }
  return operand(program_.instructions[reader], 0) == result;
}

/// Emits a concatenation. libtorch's own kernel for this memory order runs on one thread.
void Layouts::join(ValueId value) {
  const auto found = cats_.find(value);
  if (found == cats_.end()) return;
  const Instruction& one = program_.instructions[found->second];
  cats_.erase(found);
  const auto& images = one.arguments[0].operands;
  const Operand& result = one.results[0].operands[0];
  const Geometry& whole = result.geometry;
  std::vector<size_t> widths;
  std::vector<Operand> operands;
  widths.reserve(images.size());
  operands.reserve(images.size());
  for (const Operand& image : images) {
    widths.push_back(static_cast<size_t>(image.geometry.sizes[1]) * whole.dtype.itemsize());
    operands.push_back(channels_last_of(image));
  }
  emit("cat", std::make_shared<ChannelCat>(whole.sizes[0] * whole.sizes[2] * whole.sizes[3], std::move(widths)),
       operands, {made_channels_last(result)});
  ++report_.followed;
}

}  // namespace onednn

bool has_onednn() {
  return true;
}

OnednnReport use_onednn(graph::Program& program, bool batch_invariant) {
  OnednnReport report;
  // Primitives are created for the number of threads that will run them.
  kernels::with_work_stealing([&] { report = onednn::Layouts(program, batch_invariant).run(); });
  return report;
}

std::vector<graph::Pass> passes_with_onednn() {
  std::vector<graph::Pass> list = graph::passes();
  graph::insert_before(
      "loops",
      {.name = "onednn",
       .what = "runs convolutional networks, linears with known weights, and batches of matmuls on oneDNN's "
               "primitives",
       .tolerance = 1e-4,
       .run = [](graph::Program& program, const graph::PassOptions& options) -> int64_t {
         const OnednnReport report = use_onednn(program, options.batch_invariant);
         return report.convolutions + report.norms + report.pools + report.linears + report.matmuls;
       }},
      list);
  return list;
}

std::string OnednnReport::to_text() const {
  return c10::str("oneDNN: ", convolutions, " convolution passes, ", linears, " linears, ", quantized,
                  " of both in int8, ", matmuls, " batched matmuls, ", norms, " batch norms, ", pools, " poolings; ",
                  fused, " operators fused into them, ", followed, " operators between them in channels-last layout; ",
                  reorders, " reorders per call, ", packed, " in the first call only");
}

}  // namespace bellows::compile_detail
