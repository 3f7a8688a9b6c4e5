#include "bellows/serve/batch_invariance.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>

#include <memory>
#include <utility>

#include "bellows/io/hash.h"

namespace bellows::serve {

namespace {

constexpr uintptr_t allocation_alignment = 64;  // of libtorch's allocations, and enough for all vector instructions
constexpr size_t most_checks = 10'000;          // limits the memory and time that requests of ever new sizes can use

at::Tensor aligned(const at::Tensor& tensor) {
  const bool fits = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % allocation_alignment == 0;
  return fits && tensor.is_contiguous() ? tensor : tensor.clone(at::MemoryFormat::Contiguous);
}

/// Returns the hashes of one row of all outputs.
std::string row_hash(const std::vector<at::Tensor>& outputs, int64_t row) {
  std::string all;
  for (const at::Tensor& output : outputs) {
    const at::Tensor values = output.select(0, row).contiguous();
    all += io::hash_hex("xxh3_128", {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
  return all;
}

bool has_rows(const std::vector<at::Tensor>& outputs, int64_t rows) {
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || output.dim() == 0 || output.size(0) != rows) return false;
  }
  return true;
}

}  // namespace

/// One instance of the model, and the sizes of batches that it has checked.
class BatchInvariance::Instance {
 public:
  Instance(BatchInvariance& shared, RunModel run) : shared_(shared), run_(std::move(run)) {}

  std::vector<at::Tensor> operator()(std::span<const at::Tensor> inputs) {
    const int64_t rows = inputs[0].size(0);
    const RowSizes sizes = row_sizes(inputs);
    if (rows > 1 && !keeps_bits(sizes, rows)) return halves(inputs, rows);
    if (rows == 1 && shared_.instances_ > 1 && alone_.size() < most_checks) check_alone(sizes, 0);
    std::vector<at::Tensor> copies;
    for (const at::Tensor& input : inputs) copies.push_back(aligned(input));
    return run_(copies);
  }

 private:
  static RowSizes row_sizes(std::span<const at::Tensor> inputs) {
    RowSizes sizes;
    for (const at::Tensor& input : inputs) sizes.push_back(input.sizes().slice(1).vec());
    return sizes;
  }

  std::vector<at::Tensor> halves(std::span<const at::Tensor> inputs, int64_t rows) {
    const int64_t half = rows / 2;
    std::vector<at::Tensor> low, high;
    for (const at::Tensor& input : inputs) {
      low.push_back(input.narrow(0, 0, half));
      high.push_back(input.narrow(0, half, rows - half));
    }
    std::vector<at::Tensor> outputs = (*this)(low);
    const std::vector<at::Tensor> rest = (*this)(high);
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i] = at::cat({outputs[i], rest.at(i)});
    return outputs;
  }

  /// Returns whether a batch of this size gives each row the bits that it has alone.
  bool keeps_bits(const RowSizes& sizes, int64_t rows) {
    const auto known = checked_.find({sizes, rows});
    if (known != checked_.end()) return known->second;
    if (checked_.size() >= most_checks) return false;
    const std::vector<at::Tensor> outputs = run_(check_batch(sizes, rows));
    bool equal = true;
    // If the outputs have no rows, the caller reports it.
    for (int64_t row = 0; has_rows(outputs, rows) && row < rows && equal; ++row)
      equal = row_hash(outputs, row) == check_alone(sizes, static_cast<size_t>(row));
    checked_[{sizes, rows}] = equal;
    return equal;
  }

  std::vector<at::Tensor> check_batch(const RowSizes& sizes, int64_t rows) const {
    std::vector<std::vector<at::Tensor>> columns(sizes.size());
    for (int64_t row = 0; row < rows; ++row) {
      const std::vector<at::Tensor> one = shared_.check_row(sizes, static_cast<size_t>(row));
      for (size_t i = 0; i < one.size(); ++i) columns[i].push_back(one[i]);
    }
    std::vector<at::Tensor> batch;
    batch.reserve(columns.size());
    for (const std::vector<at::Tensor>& column : columns) batch.push_back(at::cat(column));
    return batch;
  }

  /// Returns the hash of a row of the check that runs alone, after comparing it with those of the other instances.
  const std::string& check_alone(const RowSizes& sizes, size_t row) {
    std::vector<std::string>& own = alone_[sizes];
    while (own.size() <= row) {
      const std::vector<at::Tensor> outputs = run_(shared_.check_row(sizes, own.size()));
      TORCH_CHECK(has_rows(outputs, 1), "batch_invariant: expected outputs with one row for an input with one row.");
      const std::string hash = row_hash(outputs, 0);
      const UniqueLock lock(shared_.mutex_);
      std::vector<std::string>& all = shared_.alone_[sizes];
      if (all.size() == own.size()) all.push_back(hash);
      TORCH_CHECK(all[own.size()] == hash,
                  "batch_invariant: two instances of the model return different bits for the same input. Set the count "
                  "of instance_group to 1, or use a back end whose kernels do not depend on measured times.");
      own.push_back(hash);
    }
    return own[row];
  }

  BatchInvariance& shared_;
  const RunModel run_;
  std::map<RowSizes, std::vector<std::string>> alone_{};
  std::map<std::pair<RowSizes, int64_t>, bool> checked_{};
};

RunModel BatchInvariance::instance(RunModel run) {
  ++instances_;
  auto instance = std::make_shared<Instance>(*this, std::move(run));
  return [instance](std::span<const at::Tensor> inputs) { return (*instance)(inputs); };
}

/// Floating-point inputs have normally distributed values. Integers are 0 or 1, which are valid as tokens, masks and
/// segments.
std::vector<at::Tensor> BatchInvariance::check_row(const RowSizes& sizes, size_t row) const {
  at::Generator generator = at::detail::createCPUGenerator(row);
  std::vector<at::Tensor> inputs;
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::vector<int64_t> shape = sizes[i];
    shape.insert(shape.begin(), 1);
    const c10::ScalarType dtype = inputs_[i].dtype;
    if (at::isFloatingType(dtype))
      inputs.push_back(at::randn(shape, generator, at::kFloat).to(dtype));
    else
      inputs.push_back(at::randint(0, 2, shape, generator, at::kLong).to(dtype));
  }
  return inputs;
}

}  // namespace bellows::serve
