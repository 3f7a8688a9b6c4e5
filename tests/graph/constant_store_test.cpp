#include "bellows/graph/program/constant_store.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace bellows::graph {
namespace {

/// Computes twice a constant in the scope of a store.
at::Tensor doubled(ConstantStore& store, const at::Tensor& constant, const std::string& what, int& computations) {
  const ConstantStoreScope scope(&store);
  const Geometry made = Geometry::of(constant);
  return stored_or_computed(what, {&constant, 1}, {&made, 1}, [&] {
    ++computations;
    return std::vector{constant * 2};
  })[0];
}

TEST(ConstantStore, ReturnsWhatAnotherStoreComputed) {
  const at::Tensor weight = torch::randn({3, 4});
  int computations = 0;
  ConstantStore first, second;
  first.name(weight.storage(), "weight");
  second.name(weight.storage(), "weight");
  const at::Tensor computed = doubled(first, weight, "twice", computations);
  ASSERT_EQ(first.used().size(), 1u);
  for (const auto& [key, tensor] : first.used()) {
    const at::Tensor bytes = torch::empty({static_cast<int64_t>(tensor.nbytes())}, at::kByte);
    std::memcpy(bytes.data_ptr(), tensor.data_ptr(), tensor.nbytes());
    second.add(key, bytes);
  }
  EXPECT_TRUE(doubled(second, weight, "twice", computations).equal(computed));
  EXPECT_EQ(computations, 1);
}

TEST(ConstantStore, ComputesOtherThingsAgain) {
  const at::Tensor weight = torch::randn({3, 4}), unnamed = torch::randn({3, 4});
  int computations = 0;
  ConstantStore store;
  store.name(weight.storage(), "weight");
  doubled(store, weight, "twice", computations);
  doubled(store, weight, "twice", computations);
  EXPECT_EQ(computations, 1);
  doubled(store, weight, "another", computations);
  doubled(store, weight.t(), "twice", computations);
  EXPECT_EQ(computations, 3);
  doubled(store, unnamed, "twice", computations);
  doubled(store, unnamed, "twice", computations);
  EXPECT_EQ(computations, 5) << "a constant without a name has no key";
}

}  // namespace
}  // namespace bellows::graph
