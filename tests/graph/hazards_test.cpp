#include <thread>

#include "bellows/recompute/activation_checkpoint.h"
#include "bellows/tap/context.h"
#include "bellows/tap/deferral.h"
#include "bellows/tap/observer.h"
#include "tests/graph/support.h"

namespace bellows::graph::testing {
namespace {

using ::testing::HasSubstr;

TEST(RegionHazards, TouchingAPendingTensorSaysWhatToCall) {
  Region region;
  const at::Tensor x = torch::ones({3});
  for (int call = 0; call < 3; ++call) {
    region.run([&] {
      const at::Tensor y = x + 1, column = y.view({3, 1});
      if (call > 0) {
        EXPECT_THAT(error_of([&] { y.data_ptr(); }), HasSubstr("Call bellows::sync()"));
        EXPECT_THAT(error_of([&] { column.data_ptr<float>(); }), HasSubstr("no value yet"));
        EXPECT_THAT(error_of([&] { y.accessor<float, 1>(); }), HasSubstr("sync()"));
        EXPECT_THAT(error_of([&] { y.storage().data(); }), HasSubstr("sync()"));
        EXPECT_THAT(error_of([&] { y.const_data_ptr<float>(); }), HasSubstr("sync()"));
      }
      tap::sync();
      EXPECT_EQ(y.data_ptr<float>()[1], 2);
      EXPECT_EQ((y * 2).sum().item<float>(), 12);
    });
  }
  EXPECT_EQ(region.explain().followed_calls, 2);
  EXPECT_NO_THROW(tap::sync());  // outside: nothing to do
}

TEST(RegionHazards, PrintingNeedsAGuard) {
  Region region;
  const at::Tensor x = torch::ones({3});
  std::string plain;
  for (int call = 0; call < 3; ++call) {
    region.run([&] {
      const at::Tensor y = x + 1;
      {
        const tap::EagerGuard guard;
        std::ostringstream out;
        out << y;
        if (call == 0) plain = out.str();
        EXPECT_EQ(out.str(), plain);
      }
      EXPECT_EQ((y * 2).sum().item<double>(), 12);
    });
  }
  EXPECT_EQ(region.explain().recorded, 4);
}

TEST(RegionHazards, HostWritesIntoInputsWithPendingReads) {
  Region region;
  const at::Tensor x = torch::ones({3});
  for (int call = 0; call < 3; ++call) {
    x.fill_(1);
    at::Tensor y;
    region.run([&] {
      y = x + 1;
      if (call >= Region::eager_calls()) {
        EXPECT_THAT(error_of([&] { x.data_ptr<float>()[0] = 100; }), HasSubstr("Call bellows::sync()"));
        tap::sync();
      }
      x.data_ptr<float>()[0] = 100;
      y = y * 2;
    });
    EXPECT_EQ(y.sum().item<float>(), 12);
    EXPECT_EQ(x.sum().item<float>(), 102);  // and no guard is left
  }
}

TEST(RegionHazards, GeneratorsAreWhereTheHostExpectsThem) {
  const auto make = [] {
    return Program{[](int call) -> Tensors {
      const at::Tensor before = torch::randn({4}) * 2;
      torch::manual_seed(call);
      const at::Tensor a = torch::rand({2});
      torch::manual_seed(call);
      const at::Tensor b = torch::rand({2});
      EXPECT_TRUE(at::equal(a, b));
      auto generator = at::detail::getDefaultCPUGenerator();
      const at::Tensor saved = generator.get_state();
      const at::Tensor c = torch::dropout(a, 0.5, true);
      generator.set_state(saved);
      const at::Tensor d = torch::dropout(a, 0.5, true), e = torch::multinomial(torch::softmax(before, 0), 2);
      EXPECT_TRUE(at::equal(c, d));
      auto mine = at::detail::createCPUGenerator(call);
      return {before,          a, b, c, d, e, torch::randperm(5), torch::rand({3}, mine), at::rand_like(before),
              at::bernoulli(a)};
    }};
  };
  EXPECT_GE(expect_same(make).followed_calls, 9);
}

TEST(RegionHazards, KernelsRunInTheStateTheyWereCalledIn) {
  const auto make = [] {
    const at::Tensor x = torch::randn({64, 64}), index = torch::randint(0, 64, {64});
    torch::nn::LSTM lstm(8, 8);
    const at::Tensor steps = torch::randn({4, 2, 8});
    return Program{[=](int) mutable -> Tensors {
      Tensors all;
      at::globalContext().setUserEnabledMkldnn(false);
      all.push_back(at::mm(x, x));
      at::globalContext().setUserEnabledMkldnn(true);
      at::globalContext().setDeterministicAlgorithms(true, false);
      all.push_back(at::index_put(x, {index}, x, true));
      at::globalContext().setDeterministicAlgorithms(false, false);
      at::Tensor out;
      {
        const at::AutoGradMode on(true);
        out = std::get<0>(lstm(steps));
      }
      lstm->zero_grad();
      out.sum().backward();
      all.push_back(out);
      all.push_back(lstm->parameters()[0].grad());
      c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
      all.push_back(index / 3);
      c10::set_default_dtype(caffe2::TypeMeta::Make<float>());
      return all;
    }};
  };
  EXPECT_GE(expect_same(make).followed_calls, 8);
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  EXPECT_EQ(c10::get_default_dtype(), caffe2::TypeMeta::Make<float>());
}

TEST(RegionHazards, BatchNormWritesWhatItsSchemaDoesNotSay) {
  Region region;
  torch::nn::BatchNorm1d norm(4);
  region.run([&] { norm(torch::randn({3, 4})); });
  ASSERT_EQ(region.recordings().size(), 1u);
  const auto recording = region.recordings()[0];
  const auto& all = recording.program.instructions;
  const auto found = std::find_if(all.begin(), all.end(), [](const Instruction& one) {
    return one.op->name.find("native_batch_norm") != std::string::npos;
  });
  ASSERT_NE(found, all.end());
  EXPECT_EQ(found->updates.size(), 2u) << recording.to_text();
}

/// In inference mode composite operators arrive whole.
TEST(RegionHazards, InstanceNormWritesWhatItsSchemaDoesNotSay) {
  expect_same([]() -> Program {
    torch::nn::InstanceNorm2d norm(torch::nn::InstanceNorm2dOptions(4).track_running_stats(true));
    const at::Tensor x = torch::randn({2, 4, 3, 3});
    return {[norm, x](int call) mutable -> Tensors {
      const c10::InferenceMode inference;
      const at::Tensor before = norm->running_mean * 2;
      norm(x + call);
      return {before, norm->running_mean * 2, norm->running_var + 0};
    }};
  });
}

/// Whole, without a tag that says that data decides about their results.
TEST(RegionHazards, CompositesThatLookAtDataInInferenceMode) {
  expect_same([]() -> Program {
    const at::Tensor x = torch::arange(24.0).view({12, 2}), values = torch::randn({40});
    return {[=](int call) -> Tensors {
      const c10::InferenceMode inference;
      const at::Tensor start = torch::full({}, call % 3, at::kLong);
      const at::Tensor cuts = torch::tensor({1 + call % 4, 7});
      const at::Tensor found = at::where(values > 0.2 * (call % 4 - 1))[0];
      const auto parts = at::tensor_split(x, cuts);
      return {at::narrow(x, 0, start, 2) * 1,
              parts[0] * 2,
              parts[1] + 1,
              found + 1,
              values.clamp_min(0).sum() / found.size(0),
              at::repeat_interleave(x, (x.select(1, 0) > call).to(at::kLong), 0)};
    }};
  });
}

TEST(RegionHazards, MetadataChangedInPlaceAndStoragesSwapped) {
  const auto make = [] {
    auto p = std::make_shared<at::Tensor>(torch::zeros({2}));
    return Program{[p](int call) -> Tensors {
      at::Tensor grown = *p * 2;
      grown.resize_({2, 3}).fill_(call);
      at::Tensor turned = torch::ones({2, 3}).mul(call).t_();
      turned.unsqueeze_(0);
      p->set_data(*p + 1);
      at::Tensor other = torch::empty({0});
      other.set_(p->storage(), 0, {2}, {1});
      other.add_(1);
      return {grown, turned + 1, *p, other};
    }};
  };
  expect_same(make);
}

TEST(RegionHazards, SparseTensorsPassThrough) {
  const auto make = [] {
    const at::Tensor x = torch::randn({4, 4}).relu(), y = torch::randn({4, 4});
    const auto embedding = std::make_shared<torch::nn::EmbeddingImpl>(torch::nn::EmbeddingOptions(5, 3).sparse(true));
    return Program{[=](int call) -> Tensors {
      const at::Tensor sparse = (x * call).to_sparse();
      embedding->zero_grad();
      embedding->forward(torch::tensor({1, call % 5})).sum().backward();
      return {at::mm(sparse, y), sparse.to_dense() + 1, embedding->weight.grad().to_dense()};
    }};
  };
  expect_same(make);
}

TEST(RegionHazards, OtherThreadsGetAnErrorNotAnOldValue) {
  Region region;
  for (int call = 0; call < 3; ++call) {
    const at::Tensor x = torch::ones({2});
    std::string plain, carried;
    at::Tensor sum;
    region.run([&] {
      const at::Tensor y = x + 1;
      std::thread([&] { plain = error_of([&] { y + 1; }); }).join();
      tap::thread([&] { sum = y + 2; }).join();
    });
    EXPECT_EQ(plain.empty(), call < Region::eager_calls()) << plain;
    EXPECT_EQ(sum.sum().item<double>(), 8);
  }
}

TEST(RegionHazards, TwoThreadsCallAtOnceAndShareWeights) {
  Region region;
  const at::Tensor w = torch::randn({8, 8}), expected = at::mm(w, w).relu().sum(0);
  std::atomic<int> wrong{0};
  const auto work = [&] {
    for (int call = 0; call < 50; ++call) {
      at::Tensor y;
      region.run([&] { y = at::mm(w, w).relu().sum(0); });
      if (!at::equal(y, expected)) ++wrong;
    }
  };
  std::thread other(work), third(work);
  work();
  other.join();
  third.join();
  EXPECT_EQ(wrong, 0);
  const Explanation said = region.explain();
  EXPECT_EQ(said.calls, 150);
  EXPECT_LE(said.recordings, 3);  // one for each call at a time
  EXPECT_EQ(said.mismatches, 0);
}

TEST(RegionHazards, RegionsInsideRegionsAreOne) {
  Region outer, inner;
  const at::Tensor x = torch::ones({2});
  for (int call = 0; call < 3; ++call) {
    at::Tensor y;
    outer.run([&] {
      y = x + 1;
      inner.run([&] { y = y * 2; });
      tap::thread([&] { inner.run([&] { y = y + 3; }); }).join();
    });
    EXPECT_EQ(y.sum().item<double>(), 14);
  }
  EXPECT_EQ(outer.explain().recorded, 3);
  EXPECT_EQ(inner.explain().nested_calls, 6);
  EXPECT_EQ(inner.explain().recorded, 0);
}

/// A policy decides about each operator when it is called, so nothing may be deferred.
TEST(RegionHazards, CheckpointsWithAPolicySeeEachOperator) {
  const auto gradient = [](Region* region, const recompute::CheckpointOptions& options, int calls) {
    torch::manual_seed(3);
    const at::Tensor weight = torch::randn({8, 8}).requires_grad_();
    at::Tensor result;
    for (int call = 0; call < calls; ++call) {
      const at::Tensor x = torch::randn({4, 8}).requires_grad_();
      const auto function = [&](const at::Tensor& input) {
        at::Tensor y;
        const auto body = [&] { y = torch::relu(torch::mm(torch::gelu(torch::mm(input, weight)), weight)); };
        region ? region->run(body) : body();
        return y;
      };
      weight.mutable_grad() = at::Tensor();
      recompute::checkpoint(options, function, x).sum().backward();
      result = weight.grad();
    }
    return result;
  };
  const recompute::CheckpointOptions policy{.policy = recompute::save_products}, budget{.budget = 0.5}, all{};
  for (const auto& options : {policy, budget}) {
    Region region;
    EXPECT_TRUE(torch::equal(gradient(&region, options, 4), gradient(nullptr, options, 4)));
    EXPECT_GE(region.explain().nested_calls, 4);
  }
  Region region;
  EXPECT_TRUE(torch::equal(gradient(&region, all, 4), gradient(nullptr, all, 4)));
  EXPECT_EQ(region.explain().nested_calls, 0);
}

TEST(RegionHazards, TheUsersOwnOperatorsAreOpaque) {
  static const auto* const library = [] {
    auto* made = new torch::Library(torch::Library::DEF, "graph_test", std::nullopt, __FILE__, __LINE__);
    made->def("count_up(Tensor x) -> Tensor", [](const at::Tensor& x) {  // writes its input, and does not say so
      x.add_(1);
      return x * 2;
    });
    return made;
  }();
  ASSERT_TRUE(library);
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("graph_test::count_up", "").typed<at::Tensor(const at::Tensor&)>();
  const auto make = [&] {
    const at::Tensor x = torch::zeros({2});
    return Program{[=](int call) -> Tensors {
                     const at::NoGradGuard no_grad;
                     const at::Tensor y = x * call;
                     return {op.call(y) + 1, op.call(x), y};
                   },
                   [=] { return Tensors{x}; }};
  };
  expect_same(make);
}

TEST(RegionHazards, AnObserverSeesAnOperatorOnce) {
  struct Counting : tap::Observer {
    void before(const tap::OpEvent& event) override { relus += event.name == "aten::relu"; }
    int relus = 0;
  };
  auto counting = std::make_shared<Counting>();
  const tap::ObserverGuard guard(counting);
  Region region;
  for (int call = 0; call < 3; ++call) region.run([&] { torch::ones({2}).mul(2).relu(); });
  EXPECT_EQ(counting->relus, 3);
}

TEST(RegionHazards, InferenceTensorsKeepOrLackTheirVersionCounter) {
  Region region;
  for (int call = 0; call < 3; ++call) {
    region.run([&] {
      at::Tensor x;
      {
        const c10::InferenceMode inference;
        x = torch::ones({2}) * 2;
      }
      at::Tensor detached = x.detach();
      EXPECT_TRUE(x.is_inference() && detached.is_inference());
      const at::NoGradGuard no_grad;
      detached.mul_(2);  // libtorch lets it
      EXPECT_THAT(error_of([&] { x.mul_(3); }), HasSubstr("Inplace update to inference tensor"));
    });
  }
  EXPECT_EQ(region.explain().followed_calls, 2);
}

TEST(RegionHazards, MemoryOfInputsAndDeadResultsIsGivenBack) {
  Region region;
  std::weak_ptr<int> memory;
  for (int call = 0; call < 3; ++call) {
    at::Tensor y;
    region.run([&] {
      auto block = std::make_shared<int>(0);
      memory = block;
      at::Tensor x = at::from_blob(new float[2]{1, 2}, {2}, [block](void* p) { delete[] static_cast<float*>(p); });
      y = x * 2;
      x.reset();
      block.reset();
      EXPECT_EQ(memory.expired(), call < Region::eager_calls());  // pending operators keep it
      tap::sync();
      EXPECT_TRUE(memory.expired());
      y = y + 1;
    });
    EXPECT_EQ(y.sum().item<double>(), 8);
  }
}

TEST(RegionHazards, BorrowedMemoryIsReadAtOnce) {
  Region region;
  for (int call = 0; call < 3; ++call) {
    at::Tensor copy, twice;
    region.run([&] {
      std::vector<float> host(100, static_cast<float>(call));
      copy = at::from_blob(host.data(), {100}).clone();
      std::fill(host.begin(), host.end(), -1.0F);
      twice = (copy * 2).sum() + at::from_blob(host.data(), {10, 10}).t().sum();
      std::fill(host.begin(), host.end(), -2.0F);  // and then it is gone
    });
    EXPECT_EQ(copy.sum().item<int>(), 100 * call);
    EXPECT_EQ(twice.item<int>(), 200 * call - 100);
  }
  EXPECT_EQ(region.explain().followed_calls, 2);
}

}  // namespace
}  // namespace bellows::graph::testing
