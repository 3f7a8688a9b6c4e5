#include "bellows/parallel/placement/weight_buckets.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>

#include "bellows/core/error.h"
#include "bellows/core/round_up.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/tap/pending_storage.h"

namespace bellows::parallel {

namespace {

/// The strides of a dense tensor with the same order of dims in memory.
std::vector<int64_t> dense_strides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  std::vector<int64_t> strides(static_cast<size_t>(tensor.dim()));
  int64_t stride = 1;
  for (size_t dim = strides.size(); dim-- > 0; stride *= tensor.size(static_cast<int64_t>(dim))) strides[dim] = stride;
  return strides;
}

std::string problem_with(const WeightSource& source, const WeightFile& file) {
  const io::SafetensorsEntry& entry = *source.entry;
  if (source.tensor.sizes() != entry.shape)
    return c10::str("\n  \"", source.name, "\" has sizes [", c10::Join(", ", entry.shape), "], but the model has ",
                    source.tensor.sizes(), ".");
  const c10::ScalarType dtype = io::safetensors_dtype(entry, file.path());
  if (c10::isFloatingType(dtype) != source.tensor.is_floating_point())
    return c10::str("\n  \"", source.name, "\" has dtype ", entry.dtype, ", but the model has ",
                    source.tensor.scalar_type(), ".");
  return "";
}

}  // namespace

std::vector<WeightSource> weight_sources(const Model& model, const WeightFile& file,
                                         const std::map<std::string, std::string>& names) {
  std::map<std::string_view, const io::SafetensorsEntry*> in_file;
  std::vector<std::string> known;
  for (const io::SafetensorsEntry& entry : file.entries()) {
    in_file.emplace(entry.name, &entry);
    known.push_back(entry.name);
  }
  std::vector<WeightSource> sources;
  std::unordered_map<const c10::TensorImpl*, size_t> index;
  size_t parameters = model.named_parameters().size();  // they come first
  for (const auto& [name, tensor] : model.state_dict()) {
    const auto [place, is_new] = index.try_emplace(tensor.unsafeGetTensorImpl(), sources.size());
    if (is_new) sources.push_back({.name = name, .tensor = tensor, .is_parameter = parameters > 0});
    if (parameters > 0) --parameters;
    const auto renamed = names.find(name);
    const auto found = in_file.find(renamed == names.end() ? name : renamed->second);
    if (found != in_file.end()) sources[place->second].entry = found->second;
  }
  std::string problems;
  for (const WeightSource& source : sources) {
    problems += source.entry ? problem_with(source, file)
                             : c10::str("\n  \"", source.name, "\" is missing.", did_you_mean(source.name, known));
  }
  TORCH_CHECK_VALUE(problems.empty(), "streamed weights: ", file.path(), " does not fit model \"", model.name(),
                    "\":", problems);
  return sources;
}

at::Tensor WeightBucket::Part::view_of(const at::Tensor& buffer) const {
  char* const begin = static_cast<char*>(buffer.data_ptr()) + offset;
  return at::from_blob(begin, source.tensor.sizes(), source.tensor.strides(),
                       at::TensorOptions(source.tensor.scalar_type()));
}

WeightBucket make_bucket(const MappedModule& module, const std::vector<const WeightSource*>& sources,
                         c10::Device device, const std::string& why) {
  WeightBucket bucket{.module = module.name, .place = module.place, .parts = {}};
  for (const WeightSource* source : sources) {
    const auto bytes = static_cast<int64_t>(source->tensor.nbytes());
    bucket.parts.push_back({.source = *source, .offset = bucket.bytes});
    bucket.bytes += round_up(bytes, weight_alignment);
  }
  bucket.storage = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bucket.bytes, c10::DataPtr(nullptr, device),
      c10::GetAllocator(device.type()), /*resizable=*/false));
  for (WeightBucket::Part& part : bucket.parts) {
    at::Tensor& parameter = part.source.tensor;
    at::Tensor view = at::empty({0}, at::TensorOptions(parameter.scalar_type()).device(device));
    view.set_(bucket.storage, part.offset / static_cast<int64_t>(parameter.element_size()), parameter.sizes(),
              dense_strides(parameter));
    parameter.mutable_grad().reset();
    parameter.set_data(view);
  }
  tap::withdraw_memory(*bucket.storage.unsafeGetStorageImpl(), why);
  return bucket;
}

int64_t read_bucket(const WeightBucket& bucket, const WeightFile& file, const at::Tensor& buffer) {
  uint64_t bytes = 0;
  for (const WeightBucket::Part& part : bucket.parts) {
    const io::SafetensorsEntry& entry = *part.source.entry;
    file.read(entry, part.view_of(buffer));
    bytes += entry.end - entry.begin;
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace bellows::parallel
