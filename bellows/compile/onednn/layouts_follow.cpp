#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_set>

#include "bellows/compile/onednn/layouts.h"
#include "bellows/graph/passes/fusible.h"
#include "bellows/kernels/parallel.h"

namespace bellows::compile_detail::onednn {
namespace {

bool is_pointwise(const Instruction& one) {
  const auto expression = graph::expression_of(one);
  return expression && !expression->has_reductions();
}

/// Images of the same places, channels last: each place's channels, one image after the other.
class ChannelCat final : public graph::Kernel {
 public:
  /// Params: places – of all samples; widths – of each image's channels, in bytes
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

template <class Predicate>
bool any_operand(const Instruction& one, const Predicate& predicate) {
  return std::any_of(one.arguments.begin(), one.arguments.end(), [&](const Instruction::Argument& argument) {
    return std::any_of(argument.operands.begin(), argument.operands.end(), predicate);
  });
}

}  // namespace

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

/// Whether this image is there in oneDNN's order only.
bool Layouts::waits(const Operand& operand) const {
  const auto found = twins_.find(operand.value);
  return found != twins_.end() && !there_[operand.value] &&
         (found->second.plain == operand.geometry || part_of_twin(operand));
}

/// Whether libtorch's operator gives a result of the order that is expected of it, as far as it says so without data.
bool Layouts::keeps_image_order(const Instruction& one, const Operand& result) const {
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
    return true;  // it cannot tell; where it does not, whoever runs the program copies
  }
  return stack.size() == 1 && stack[0].isTensor() &&
         stack[0].toTensor().strides() == at::IntArrayRef(result.geometry.strides);
}

/// A pointwise operator is the same whatever the order is, if it is the same for all; and there are kernels of libtorch that keep it.
bool Layouts::follow(int at) {
  static const std::unordered_set<std::string> keep_order{
      "aten::cat", "aten::upsample_bilinear2d", "aten::upsample_bilinear2d_backward", "aten::upsample_nearest2d",
      "aten::upsample_nearest2d_backward"};
  const Instruction& one = program_.instructions[at];
  if (!one.op->writes.empty() || !owned(one)) return false;
  const Operand& result = one.results[0].operands[0];
  const bool any_size = keep_order.contains(one.op->name);
  const auto takes_part = [&](const Operand& operand) {
    return (is_image(operand) || part_of_twin(operand)) &&
           (any_size || operand.geometry.sizes == result.geometry.sizes);
  };
  const bool asked = any_operand(one, [&](const Operand& operand) { return takes_part(operand) && waits(operand); });
  if (!asked || !(any_size || is_pointwise(one))) return false;
  Instruction changed = one;
  changed.updates.clear();
  const auto for_images = [&](const auto& change) {
    for (size_t i = 0; i < changed.arguments.size(); ++i) {
      for (size_t j = 0; j < changed.arguments[i].operands.size(); ++j) {
        const Operand& before = one.arguments[i].operands[j];
        change(before, changed.arguments[i].operands[j], takes_part(before));
      }
    }
  };
  for_images([&](const Operand& before, Operand& now, bool image) {
    const auto part = image && !is_image(before) ? part_of_twin(before) : std::nullopt;
    if (image) now.geometry = part ? part->geometry : channels_last_geometry(before.geometry);
  });
  changed.results[0].operands[0].geometry = channels_last_geometry(result.geometry);
  if (!keeps_image_order(changed, changed.results[0].operands[0])) return false;
  for_images([&](const Operand& before, Operand& now, bool image) {
    if (!image) return need_plain(before.value);
    now = is_image(before) ? channels_last_of(before) : *part_of_twin(before);
  });
  changed.results[0].operands[0] = made_channels_last(result);
  made_.push_back(std::move(changed));
  ++report_.followed;
  return true;
}

/// Waits until somebody asks for it: a convolution may do without (convolve_parts).
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

/// Whether only a convolution reads a concatenation, and nothing is written over its parts before.
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

/// libtorch's kernel for this order runs on one thread.
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

}  // namespace bellows::compile_detail::onednn
