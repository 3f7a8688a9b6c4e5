#include "bellows/runtime/example_inputs.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <set>

#include "bellows/core/error.h"

namespace bellows::runtime {

namespace {

constexpr int64_t usual_length = 128, usual_pixels = 224;

class SizeChooser {
 public:
  explicit SizeChooser(const ExampleSizes& sizes) : sizes_(sizes) {}

  std::vector<int64_t> sizes_of(const TensorInfo& input) {
    std::vector<int64_t> result;
    for (size_t axis = 0; axis < input.sizes.size(); ++axis) {
      const int64_t fixed = input.sizes[axis];
      result.push_back(fixed >= 0 ? fixed : size_of(input, axis));
      TORCH_CHECK_VALUE(fixed >= 0 || result.back() >= 1, "input \"", input.name, "\": axis ", axis,
                        " must have at least 1 element, got ", result.back(), ".");
    }
    return result;
  }

  /// Throws: c10::ValueError if a name was not used
  void check_names() const {
    for (const auto& [name, size] : sizes_.sizes) {
      if (used_.contains(name)) continue;
      const std::vector<std::string> known(names_.begin(), names_.end());
      std::string list;
      for (const std::string& one : known) list += (list.empty() ? "" : ", ") + one;
      TORCH_CHECK_VALUE(false, "no input has an axis \"", name, "\" that may vary. ",
                        known.empty() ? "All axes have fixed sizes." : "Axes: " + list + ".",
                        did_you_mean(name, known));
    }
  }

 private:
  int64_t size_of(const TensorInfo& input, size_t axis) {
    const std::string place = c10::str(input.name, ":", axis);
    const std::string name = axis < input.axes.size() ? input.axes[axis] : "";
    names_.insert(name.empty() ? place : name);
    for (const std::string& key : {place, name}) {
      const auto found = sizes_.sizes.find(key);
      if (found == sizes_.sizes.end() || key.empty()) continue;
      used_.insert(key);
      return found->second;
    }
    if (axis == 0) return sizes_.batch_size;
    if (sizes_.length > 0) return sizes_.length;
    return input.sizes.size() == 4 ? usual_pixels : usual_length;
  }

  const ExampleSizes& sizes_;
  std::set<std::string> used_, names_;
};

at::Tensor random_tensor(const TensorInfo& input, const std::vector<int64_t>& sizes, int64_t vocabulary,
                         const at::Generator& generator) {
  if (c10::isFloatingType(input.dtype) || c10::isComplexType(input.dtype))
    return at::randn(sizes, generator, at::TensorOptions(at::kFloat)).to(input.dtype);
  const int64_t most = input.dtype == at::kBool   ? 2
                       : input.dtype == at::kChar ? std::min<int64_t>(vocabulary, 128)
                       : input.dtype == at::kByte ? std::min<int64_t>(vocabulary, 256)
                                                  : vocabulary;
  return at::randint(0, most, sizes, generator, at::TensorOptions(at::kLong)).to(input.dtype);
}

}  // namespace

std::vector<at::Tensor> example_inputs(std::span<const TensorInfo> inputs, const ExampleSizes& sizes) {
  TORCH_CHECK_VALUE(sizes.vocabulary >= 1, "`vocabulary` must be at least 1, got ", sizes.vocabulary, ".");
  SizeChooser chooser(sizes);
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
  std::vector<at::Tensor> result;
  for (const TensorInfo& input : inputs) {
    TORCH_CHECK_VALUE(input.dtype != c10::ScalarType::Undefined, "input \"", input.name,
                      "\": the file states neither dtype nor sizes.");
    result.push_back(random_tensor(input, chooser.sizes_of(input), sizes.vocabulary, generator));
  }
  chooser.check_names();
  return result;
}

}  // namespace bellows::runtime
