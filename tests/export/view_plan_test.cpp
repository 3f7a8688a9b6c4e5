#include <gtest/gtest.h>
#include <torch/torch.h>

#include <random>

#include "bellows/export/view_plan.h"

namespace bellows::export_detail {
namespace {

/// Computes the view from the logical tensor with the plan's steps, as an exported graph does.
at::Tensor applied(const ViewPlan& plan, at::Tensor x) {
  if (!plan.memory_order.empty()) x = x.permute(plan.memory_order).contiguous();
  if (plan.sizes) x = x.reshape(*plan.sizes);
  std::vector<int64_t> selected;
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    const ViewPlan::Slice& one = plan.slices[i];
    const auto dim = static_cast<int64_t>(i);
    x = x.slice(dim, one.start, one.start + (one.size - 1) * one.step + 1, one.step);
    if (one.select) selected.push_back(dim);
  }
  for (auto dim = selected.rbegin(); dim != selected.rend(); ++dim) x = x.squeeze(*dim);
  if (!plan.order.empty()) x = x.permute(plan.order);
  for (const int64_t dim : plan.inserted) x = x.unsqueeze(dim);
  if (!plan.expanded.empty()) x = x.expand(plan.expanded);
  return x;
}

void expect_planned(const at::Tensor& base, const at::Tensor& view) {
  const auto plan = plan_view(graph::Geometry::of(base), graph::Geometry::of(view));
  ASSERT_TRUE(plan) << base.sizes() << base.strides() << " -> " << view.sizes() << view.strides();
  const at::Tensor made = applied(*plan, base.contiguous());
  ASSERT_EQ(made.sizes(), view.sizes());
  EXPECT_TRUE(at::equal(made, view)) << view.sizes() << view.strides();
}

at::Tensor counted(at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes)).view(sizes);
}

TEST(ViewPlan, UsualViews) {
  const at::Tensor x = counted({2, 12, 18});
  expect_planned(x, x);
  expect_planned(x, x.view({24, 18}));
  expect_planned(x, x.transpose(1, 2));
  expect_planned(x, x.select(1, 0));
  expect_planned(x, x.select(1, -1));
  expect_planned(x, x.slice(2, 6, 12));
  expect_planned(x, x.slice(1, 1, 12, 3));
  expect_planned(x, x.slice(2, 6, 12).view({2, 12, 3, 2}).transpose(1, 2));
  expect_planned(x, x.unsqueeze(1).expand({2, 4, 12, 18}));
  expect_planned(x, x.view({2, 12, 3, 6}).transpose(1, 2).select(3, 2));
  expect_planned(x, x.diagonal(0, 0, 1).slice(0, 0, 0, 1).numel() == 0 ? x[1] : x);
}

TEST(ViewPlan, OneStepForSimpleViews) {
  const at::Tensor x = counted({2, 12, 18});
  const auto plan = [&](const at::Tensor& view) {
    return *plan_view(graph::Geometry::of(x), graph::Geometry::of(view));
  };
  EXPECT_TRUE(plan(x).is_identity());
  EXPECT_TRUE(plan(x.view({24, 18})).order.empty());
  EXPECT_FALSE(plan(x.transpose(0, 1)).sizes);
  EXPECT_FALSE(plan(x.select(1, 3)).sizes);
}

TEST(ViewPlan, TensorsInOtherMemoryOrders) {
  const at::Tensor image = counted({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  expect_planned(image, image.permute({0, 2, 3, 1}));
  expect_planned(image, image.permute({0, 2, 3, 1}).view({2, 20, 3}));
  expect_planned(image, image.slice(1, 1, 3));
  const at::Tensor one = counted({2, 1, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  expect_planned(one, one.view({2, 20}));
}

TEST(ViewPlan, OverlappingElementsHaveNoPlan) {
  const at::Tensor x = counted({10});
  EXPECT_FALSE(plan_view(graph::Geometry::of(x), graph::Geometry::of(x.unfold(0, 3, 1))));
  EXPECT_FALSE(plan_view(graph::Geometry::of(counted({4, 4})), graph::Geometry::of(counted({4, 4}).diagonal())));
}

/// Chains of random views. Some have no plan, but a plan is never wrong.
TEST(ViewPlan, RandomChainsOfViews) {
  std::mt19937 random(5);
  const auto pick = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  int planned = 0, total = 0;
  for (int round = 0; round < 3000; ++round) {
    const at::Tensor base =
        counted({2, 3, 4, 6}).permute(round % 2 ? std::vector<int64_t>{0, 2, 3, 1} : std::vector<int64_t>{0, 1, 2, 3});
    at::Tensor view = base;
    for (int64_t step = pick(4); step >= 0; --step) {
      const int64_t dim = view.dim() > 0 ? pick(view.dim()) : 0;
      switch (view.dim() > 0 ? pick(6) : 5) {
        case 0:
          view = view.transpose(dim, pick(view.dim()));
          break;
        case 1:
          view = view.select(dim, pick(view.size(dim)));
          break;
        case 2:
          view = view.slice(dim, pick(view.size(dim)), view.size(dim), 1 + pick(2));
          break;
        case 3:
          if (view.is_contiguous()) view = view.view({-1, view.size(-1)});
          break;
        case 4:
          if (view.size(dim) == 1)
            view = view.expand([&] {
              std::vector<int64_t> sizes = view.sizes().vec();
              sizes[dim] = 3;
              return sizes;
            }());
          break;
        default:
          view = view.unsqueeze(pick(view.dim() + 1));
      }
    }
    const auto plan = plan_view(graph::Geometry::of(base), graph::Geometry::of(view));
    ++total;
    if (!plan) continue;
    ++planned;
    const at::Tensor made = applied(*plan, base.contiguous());
    ASSERT_EQ(made.sizes(), view.sizes());
    ASSERT_TRUE(at::equal(made, view)) << base.strides() << " -> " << view.sizes() << view.strides();
  }
  EXPECT_GT(planned, total * 9 / 10);
}

}  // namespace
}  // namespace bellows::export_detail
