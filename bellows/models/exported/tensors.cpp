#include "bellows/models/exported/tensors.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "bellows/io/tables/json_impl.h"

namespace bellows::models::exported {

namespace {

constexpr size_t kMostDimensions = 64;

int64_t stored_size(const Json& value, const char* what) {
  const auto [kind, number] = alternative_of(value);
  TORCH_CHECK_VALUE(kind == "as_int" && number.is_number_integer() && number >= 0 && number <= INT64_MAX,
                    "expected a fixed ", what, " of at least 0, found ", io::shown_json(value), ".");
  return number.get<int64_t>();
}

std::vector<int64_t> stored_sizes(const Json& list, const char* what) {
  TORCH_CHECK_VALUE(list.is_array() && list.size() <= kMostDimensions, "expected a list of at most ", kMostDimensions,
                    " ", what, "s, found ", io::shown_json(list), ".");
  std::vector<int64_t> sizes;
  sizes.reserve(list.size());
  for (const Json& one : list) sizes.push_back(stored_size(one, what));
  return sizes;
}

StoredForm form_of(const Json& entry, const std::string& folder) {
  TORCH_CHECK_VALUE(entry.at("use_pickle") == false,
                    "expected raw bytes, found a pickled tensor subclass or custom object, which is not supported.");
  const Json& meta = entry.at("tensor_meta");
  TORCH_CHECK_VALUE(layout_of(meta.at("layout")) == c10::kStrided, "expected a dense tensor, found another layout.");
  StoredForm form{.record = folder + entry.at("path_name").get<std::string>(), .dtype = dtype_of(meta.at("dtype"))};
  form.sizes = stored_sizes(meta.at("sizes"), "size");
  form.strides = stored_sizes(meta.at("strides"), "stride");
  TORCH_CHECK_VALUE(form.sizes.size() == form.strides.size(), "expected as many strides as sizes, found ",
                    form.strides.size(), " and ", form.sizes.size(), ".");
  form.offset = stored_size(meta.at("storage_offset"), "storage offset");
  form.device = device_of(meta.at("device"));
  form.is_parameter = entry.at("is_param").get<bool>();
  const bool differentiable = c10::isFloatingType(form.dtype) || c10::isComplexType(form.dtype);
  form.requires_grad = form.is_parameter && differentiable && meta.at("requires_grad").get<bool>();
  return form;
}

/// Returns the number of bytes from the start of the file to the end of the tensor.
uint64_t end_in_file(const StoredForm& form) {
  uint64_t elements = 1, last = static_cast<uint64_t>(form.offset), bytes = 0;
  bool overflow = false;
  for (size_t i = 0; i < form.sizes.size(); ++i) {
    const auto size = static_cast<uint64_t>(form.sizes[i]), stride = static_cast<uint64_t>(form.strides[i]);
    overflow |= __builtin_mul_overflow(elements, size, &elements);
    uint64_t step = 0;
    overflow |= size > 0 && __builtin_mul_overflow(size - 1, stride, &step);
    overflow |= __builtin_add_overflow(last, step, &last);
  }
  overflow |= __builtin_mul_overflow(elements, c10::elementSize(form.dtype), &bytes) || bytes > INT64_MAX;
  if (elements == 0 && !overflow) return 0;
  overflow |= __builtin_add_overflow(last, uint64_t{1}, &last);
  overflow |= __builtin_mul_overflow(last, c10::elementSize(form.dtype), &last) || last > INT64_MAX;
  TORCH_CHECK_VALUE(!overflow, "the sizes ", form.sizes, " with the strides ", form.strides,
                    " need more than 2^63 bytes.");
  return last;
}

/// Returns whether several elements are at the same place, as in an expanded constant.
bool overlaps_itself(const StoredForm& form) {
  for (size_t i = 0; i < form.sizes.size(); ++i) {
    if (form.strides[i] == 0 && form.sizes[i] > 1) return true;
  }
  return false;
}

at::Tensor copy_of_bytes(io::ByteSpan bytes) {
  at::Tensor copy = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(copy.mutable_data_ptr(), bytes.data(), bytes.size());
  return copy;
}

}  // namespace

at::Tensor StoredForm::view(const at::Tensor& bytes) const {
  at::Tensor result = at::empty({0}, bytes.options().dtype(dtype));
  result.set_(bytes.storage(), offset, sizes, strides);
  return result;
}

ExportedTensors::ExportedTensors(const ExportedArchive& archive, const std::string& program) : path_(archive.path()) {
  load(archive, "data/weights/", program + "_weights_config.json");
  load(archive, "data/constants/", program + "_constants_config.json");
  files_.clear();
}

void ExportedTensors::load(const ExportedArchive& archive, const std::string& folder, const std::string& config) {
  const std::string where = archive.path() + ": " + folder + config;
  const Json document = io::parse_shallow_json(archive.text(folder + config), where);
  TORCH_CHECK_VALUE(document.is_object() && document.contains("config") && document.at("config").is_object(), where,
                    ": expected a JSON object with the entry \"config\".");
  for (const auto& [name, entry] : document.at("config").items()) {
    try {
      add(archive, name, form_of(entry, folder));
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const Json::exception& error) {
      TORCH_CHECK_VALUE(false, where, ", tensor ", io::printable(name, 200), ": ", error.what());
    } catch (const c10::Error& error) {
      TORCH_CHECK_VALUE(false, where, ", tensor ", io::printable(name, 200), ": ", error.what_without_backtrace());
    }
  }
}

void ExportedTensors::add(const ExportedArchive& archive, const std::string& name, StoredForm form) {
  const io::ByteSpan bytes = archive.bytes(form.record);
  const uint64_t end = end_in_file(form);
  TORCH_CHECK_VALUE(end <= bytes.size(), "it needs ", end, " bytes, but the file ", form.record, " has only ",
                    bytes.size(), ".");
  for (const auto& [other, known] : forms_) {  // tied weights
    if (known.record == form.record && known.sizes == form.sizes && known.strides == form.strides &&
        known.offset == form.offset && known.dtype == form.dtype && known.is_parameter == form.is_parameter &&
        c10::multiply_integers(form.sizes) > 0) {
      tensors_[name] = tensors_.at(other);
      forms_[name] = std::move(form);
      return;
    }
  }
  auto file = files_.find(form.record);
  if (file == files_.end()) file = files_.emplace(form.record, copy_of_bytes(bytes)).first;
  at::Tensor tensor = form.view(file->second);
  tensor.set_requires_grad(form.requires_grad);
  tensors_[name] = std::move(tensor);
  forms_[name] = std::move(form);
}

const at::Tensor& ExportedTensors::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  TORCH_CHECK_VALUE(found != tensors_.end(), path_, ": the program uses the tensor ", io::printable(name, 200),
                    ", which the archive does not have.");
  return found->second;
}

void ExportedTensors::share(const ExportedTensors& other) {
  for (const auto& [name, form] : forms_) {
    if (!form.record.starts_with("data/weights/")) continue;
    const auto found = other.forms_.find(name);
    TORCH_CHECK_VALUE(
        found != other.forms_.end() && found->second.sizes == form.sizes && found->second.dtype == form.dtype, path_,
        ": the programs for training and evaluation must have the same tensors, but ", io::printable(name, 200),
        " differs. Export both programs from the same model.");
    tensors_[name] = other.at(name);
  }
}

void ExportedTensors::to(c10::Device device) {
  const c10::NoGradGuard no_grad;
  std::map<const void*, at::Tensor> moved;  // by the old storage
  std::set<const c10::TensorImpl*> done;
  std::vector<at::Tensor> old;  // keeps the old storages, so that no new one gets their address
  for (auto& [name, tensor] : tensors_) {
    if (!done.insert(tensor.unsafeGetTensorImpl()).second || tensor.device() == device) continue;
    at::Tensor& bytes = moved[tensor.storage().unsafeGetStorageImpl()];
    if (!bytes.defined()) {
      at::Tensor whole = at::empty({0}, tensor.options().dtype(at::kByte).requires_grad(false));
      whole.set_(tensor.storage(), 0, {static_cast<int64_t>(tensor.storage().nbytes())}, {1});
      bytes = whole.to(device);
      old.push_back(whole);
    }
    at::Tensor view = at::empty({0}, bytes.options().dtype(tensor.scalar_type()));
    view.set_(bytes.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
    tensor.mutable_grad().reset();
    tensor.set_data(view);
  }
}

void ExportedTensors::add_files(const ExportedArchive& archive, std::map<std::string, at::Tensor>& files) const {
  const c10::NoGradGuard no_grad;
  for (const auto& [name, form] : forms_) {
    at::Tensor& bytes = files[form.record];
    if (!bytes.defined()) bytes = copy_of_bytes(archive.bytes(form.record));
    if (!overlaps_itself(form)) form.view(bytes).copy_(tensors_.at(name));
  }
}

c10::Device ExportedTensors::exported_device() const {
  std::map<std::string, std::pair<size_t, c10::Device>> counts;
  for (const auto& [name, form] : forms_) {
    ++counts.emplace(form.device.str(), std::pair(size_t{0}, form.device)).first->second.first;
  }
  const auto most = std::max_element(counts.begin(), counts.end(),
                                     [](const auto& a, const auto& b) { return a.second.first < b.second.first; });
  return most == counts.end() ? c10::Device(c10::kCPU) : most->second.second;
}

}  // namespace bellows::models::exported
