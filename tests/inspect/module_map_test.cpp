#include "bellows/inspect/module_map.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace bellows::inspect {
namespace {

TEST(ModuleMap, OwnerIsFoundThroughViews) {
  const at::Tensor weight = at::ones({4, 3});
  ModuleMap map(NamedTensors{{"encoder.fc.weight", weight}, {"scale", at::ones({1})}});
  EXPECT_EQ(map.path(map.owner(weight.t())), "encoder.fc");
  EXPECT_EQ(map.path(map.owner(weight[1])), "encoder.fc");
  EXPECT_EQ(map.owner(at::ones({4, 3})), ModuleMap::nobody);
  EXPECT_EQ(map.owner(at::Tensor()), ModuleMap::nobody);
}

TEST(ModuleMap, ParentsAreMadeAlongThePath) {
  ModuleMap map;
  const int deep = map.module("a.b.c");
  EXPECT_EQ(map.path(map.parent(deep)), "a.b");
  EXPECT_EQ(map.module("a.b.c"), deep);
  EXPECT_EQ(map.parent(map.module("a")), ModuleMap::root);
}

TEST(ModuleMap, CommonIsTheInnermostThatHoldsBoth) {
  ModuleMap map;
  EXPECT_EQ(map.common(map.module("a.b.c"), map.module("a.b.d")), map.module("a.b"));
  EXPECT_EQ(map.common(map.module("a.b.c"), map.module("a")), map.module("a"));
  EXPECT_EQ(map.common(map.module("a.b"), map.module("ab")), ModuleMap::root);
  EXPECT_EQ(map.common(map.module("a"), ModuleMap::nobody), map.module("a"));
  EXPECT_TRUE(map.inside(map.module("a.b"), map.module("a")));
  EXPECT_FALSE(map.inside(map.module("a"), map.module("a.b")));
}

TEST(ModuleMap, SharedTensorBelongsToTheCommonModule) {
  const at::Tensor shared = at::ones({4, 3});
  ModuleMap map(NamedTensors{{"net.embedding.weight", shared}, {"net.head.weight", shared}});
  EXPECT_EQ(map.path(map.owner(shared)), "net");
}

TEST(ModuleMap, FreedStorageOwnsNothingEvenIfItsAddressReturns) {
  ModuleMap map;
  for (int i = 0; i < 5000; ++i) map.adopt(at::ones({2}), map.module("gone"));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(map.owner(at::ones({2})), ModuleMap::nobody);
}

}  // namespace
}  // namespace bellows::inspect
