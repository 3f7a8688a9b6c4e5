#pragma once

#include "bellows/core/mutex.h"
#include "bellows/data/source.h"

#include <c10/util/Exception.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace bellows::data {

/// Names of the two parts of a torch::data::Example in a batch.
struct TorchDatasetOptions {
  std::string data = "image";
  std::string target = "label";
};

namespace detail {

/// A function that returns the tensors of one example, in the order of the names.
using ReadExample = std::function<std::vector<at::Tensor>(int64_t index)>;
SourcePtr from_examples(int64_t size, std::vector<std::string> names, ReadExample read);

/// Copies of one dataset. Only one thread at a time uses a copy, because the dataset is not required to be thread-safe.
template <class D>
class DatasetPool {
 public:
  explicit DatasetPool(D dataset) : prototype_(std::move(dataset)) {}

  D take() {
    MutexLock lock(mutex_);
    if (idle_.empty()) return prototype_;
    D dataset = std::move(idle_.back());
    idle_.pop_back();
    return dataset;
  }
  void give_back(D dataset) {
    MutexLock lock(mutex_);
    idle_.push_back(std::move(dataset));
  }

 private:
  Mutex mutex_;
  D prototype_ BELLOWS_GUARDED_BY(mutex_);
  std::vector<D> idle_ BELLOWS_GUARDED_BY(mutex_);
};

/// Returns one example from a Dataset (get) or from a BatchDataset (get_batch), such as the result of map().
template <class D>
auto get_example(D& dataset, size_t index) {
  if constexpr (requires { dataset.get(index); }) {
    return dataset.get(index);
  } else {
    auto batch = dataset.get_batch(std::vector<size_t>{index});
    static_assert(
        requires { batch.at(0); }, "from_torch_dataset: leave map(Stack<>()) out; the loader stacks.");
    return batch.at(0);
  }
}

template <class E>
std::vector<at::Tensor> example_tensors(const E& example) {
  if constexpr (requires { example.target.defined(); }) {
    return {example.data, example.target};
  } else if constexpr (requires { example.data; }) {
    return {example.data};
  } else {
    return {example};
  }
}

}  // namespace detail

/// Returns a `torch::data` dataset as a source. The dataset is a `Dataset` with get(), or the result of its map()
/// without Stack.
///
/// Each reading thread gets a copy of `dataset`, as with torch's DataLoader. All copies must return the same examples.
/// Include torch's headers before you call this function, because this header does not include them.
/// Params: dataset – copyable, with a known size(); returns an Example<Tensor, Tensor>, an Example<Tensor, NoTarget> or
///         a Tensor per index
/// Shapes: data and target are stacked along a new first dimension; a target of shape [1] is treated as a scalar
/// Throws: c10::ValueError if the dataset's size() is empty. read() throws c10::ValueError if a tensor of an example is
///         undefined
template <class D>
SourcePtr from_torch_dataset(D dataset, TorchDatasetOptions options = {}) {
  const auto size = dataset.size();
  TORCH_CHECK_VALUE(size.has_value(),
                    "from_torch_dataset: expected a dataset of known size, got one whose size() is "
                    "empty. Read streams in a loop of your own, or load them into tensors (from_tensors).");
  auto pool = std::make_shared<detail::DatasetPool<D>>(std::move(dataset));
  auto read = [pool](int64_t index) {
    D mine = pool->take();
    auto tensors = detail::example_tensors(detail::get_example(mine, static_cast<size_t>(index)));
    pool->give_back(std::move(mine));
    return tensors;
  };
  return detail::from_examples(static_cast<int64_t>(*size), {options.data, options.target}, std::move(read));
}

}  // namespace bellows::data
