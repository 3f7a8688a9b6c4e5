#include "bellows/graph/recording/geometry.h"

#include <algorithm>
#include <cstdint>

#include "bellows/tap/pending_storage.h"

namespace bellows::graph {
namespace {

const char* short_name(caffe2::TypeMeta dtype) {
  switch (c10::typeMetaToScalarType(dtype)) {
    case c10::kFloat:
      return "f32";
    case c10::kDouble:
      return "f64";
    case c10::kHalf:
      return "f16";
    case c10::kBFloat16:
      return "bf16";
    case c10::kLong:
      return "i64";
    case c10::kInt:
      return "i32";
    case c10::kBool:
      return "bool";
    case c10::kByte:
      return "u8";
    default:
      return c10::toString(c10::typeMetaToScalarType(dtype));
  }
}

Geometry::Numbers numbers(at::IntArrayRef list) {
  return {list.begin(), list.end()};
}

}  // namespace

Geometry Geometry::of(const at::Tensor& tensor) {
  return {.sizes = numbers(tensor.sizes()),
          .strides = numbers(tensor.strides()),
          .offset = tensor.storage_offset(),
          .dtype = tensor.dtype(),
          .device = tensor.device(),
          .keys = tensor.key_set(),
          .wrapped_number = tensor.unsafeGetTensorImpl()->is_wrapped_number()};
}

bool Geometry::fits(const c10::TensorImpl& impl) const {
  return impl.key_set() == keys && impl.dtype() == dtype && impl.sizes() == at::IntArrayRef(sizes) &&
         impl.strides() == at::IntArrayRef(strides) && impl.storage_offset() == offset && impl.device() == device &&
         impl.is_wrapped_number() == wrapped_number;
}

bool Geometry::operator==(const Geometry& other) const {
  return keys == other.keys && dtype == other.dtype && sizes == other.sizes && strides == other.strides &&
         offset == other.offset && device == other.device && wrapped_number == other.wrapped_number;
}

bool Geometry::is_contiguous() const {
  int64_t expected = 1;
  for (size_t dim = sizes.size(); dim-- > 0;) {
    if (sizes[dim] == 0) return true;
    if (sizes[dim] != 1 && strides[dim] != expected) return false;
    expected *= sizes[dim];
  }
  return true;
}

size_t Geometry::reach() const {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return 0;
  int64_t end = 0, places = 1, bytes = 0;
  bool beyond = __builtin_add_overflow(offset, 1, &end);
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    int64_t span = 0;
    beyond |= __builtin_mul_overflow(sizes[dim] - 1, strides[dim], &span);
    beyond |= __builtin_add_overflow(end, span, &end);
    beyond |= __builtin_mul_overflow(places, sizes[dim], &places);
  }
  beyond |= __builtin_mul_overflow(end, static_cast<int64_t>(dtype.itemsize()), &bytes);
  return beyond ? SIZE_MAX : static_cast<size_t>(bytes);
}

at::Tensor Geometry::over(c10::Storage storage) const {
  return tap::tensor_over(std::move(storage), keys, dtype, sizes, strides, offset, wrapped_number);
}

at::Tensor Geometry::over(c10::Storage storage, bool counted) const {
  at::Tensor made = over(std::move(storage));
  c10::TensorImpl& impl = *made.unsafeGetTensorImpl();
  if (impl.version_counter().enabled() == counted) return made;
  const c10::VariableVersion counter = counted ? c10::VariableVersion(0) : c10::VariableVersion();
  return at::Tensor(impl.shallow_copy_and_detach(counter, impl.allow_tensor_metadata_change()));
}

std::string Geometry::text() const {
  std::string result = c10::str(short_name(dtype), at::IntArrayRef(sizes));
  if (!is_contiguous()) result += c10::str(" strides ", at::IntArrayRef(strides));
  if (offset) result += c10::str(" offset ", offset);
  if (!device.is_cpu()) result += c10::str(" ", device);
  return result;
}

std::string Geometry::difference(const at::Tensor& tensor) const {
  const Geometry other = of(tensor);
  const auto instead = [](const char* what, const auto& got, const auto& expected) {
    return c10::str(what, " ", got, " instead of ", expected);
  };
  if (other.sizes != sizes) return instead("sizes", at::IntArrayRef(other.sizes), at::IntArrayRef(sizes));
  if (other.dtype != dtype) return instead("dtype", short_name(other.dtype), short_name(dtype));
  if (other.device != device) return instead("device", other.device, device);
  if (other.strides != strides) return instead("strides", at::IntArrayRef(other.strides), at::IntArrayRef(strides));
  if (other.offset != offset) return instead("offset", other.offset, offset);
  if (other.keys != keys) return instead("kind", c10::toString(other.keys), c10::toString(keys));
  return other.wrapped_number == wrapped_number ? "" : "a number instead of a tensor, or a tensor instead of a number";
}

bool is_plain(const at::Tensor& tensor) {
  using Key = c10::DispatchKey;
  static const c10::DispatchKeySet wrappers({Key::Python, Key::Functionalize, Key::Named, Key::ZeroTensor,
                                             Key::FuncTorchBatched, Key::FuncTorchGradWrapper, Key::Batched});
  return tensor.layout() == c10::kStrided && tensor.has_storage() && (tensor.is_cpu() || tensor.is_cuda()) &&
         !tensor.is_quantized() && !tensor.is_nested() && !tensor.key_set().has_any(wrappers);
}

}  // namespace bellows::graph
