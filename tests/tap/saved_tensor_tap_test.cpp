#include "support.h"

#include <gmock/gmock.h>

namespace bellows::tap::testing {
namespace {

at::Tensor parameter(at::IntArrayRef sizes) {
  return torch::rand(sizes).add_(0.5).requires_grad_();
}

TEST(SavedTensorTap, CopiesGiveTheSameBits) {
  const auto plain = conv_step();
  auto tap = std::make_shared<CopyingTap>();
  SavedTensorGuard guard(tap);
  EXPECT_TRUE(same_bits(plain, conv_step()));
  EXPECT_GT(tap->size(), 3u);
}

TEST(SavedTensorTap, SaysWhetherAClientLives) {
  EXPECT_FALSE(saved_tensor_tap_installed());
  {
    const SavedTensorGuard guard(std::make_shared<CopyingTap>());
    EXPECT_TRUE(saved_tensor_tap_installed());
  }
  EXPECT_FALSE(saved_tensor_tap_installed());
}

TEST(SavedTensorTap, Bf16PackIsCloseAndRestoresTheDtype) {
  const auto plain = conv_step();
  std::vector<at::Tensor> packed;
  {
    SavedTensorGuard guard(std::make_shared<CopyingTap>(at::kBFloat16));
    packed = conv_step();
  }
  EXPECT_TRUE(at::equal(plain[0], packed[0]));
  ASSERT_EQ(plain.size(), packed.size());
  EXPECT_FALSE(same_bits(plain, packed));
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(plain[i].scalar_type(), packed[i].scalar_type());
    EXPECT_TRUE(at::allclose(plain[i], packed[i], 0.05, 0.02));
  }
}

TEST(SavedTensorTap, DuplicatesArePackedOnceAndViewsApart) {
  auto x = parameter({4, 4});
  auto tap = std::make_shared<CopyingTap>();
  SavedTensorGuard guard(tap);
  auto h = x * 1.0;
  auto y = (h * h).sum() + h.pow(3).sum();
  EXPECT_EQ(tap->size(), 1u);
  auto z = h.t().pow(2).sum();
  EXPECT_EQ(tap->size(), 2u);
  (y + z).backward();
  EXPECT_TRUE(at::allclose(x.grad(), 4 * x + 3 * x * x));
}

TEST(SavedTensorTap, ModifiedTensorIsPackedAnew) {
  auto x = parameter({3});
  auto tap = std::make_shared<CopyingTap>();
  SavedTensorGuard guard(tap);
  auto h = torch::ones({3});
  auto y = x * h;
  h.add_(1);
  auto z = x * h;
  EXPECT_EQ(tap->size(), 2u);
  EXPECT_THROW(y.sum().backward(), c10::Error);
  z.sum().backward();
  EXPECT_EQ(x.grad()[0].item<float>(), 2);
}

TEST(SavedTensorTap, ParametersAndTheirViewsAreLeftAlone) {
  auto w = parameter({4, 3}), x = torch::rand({2, 3});
  auto tap = std::make_shared<CopyingTap>();
  SavedTensorGuard guard(tap);
  auto h = at::mm(x, w.t());
  EXPECT_THAT(tap->names, ::testing::ElementsAre("[2, 3]"));
  auto y = h.requires_grad() ? (w * w).sum() + h.sum() : h;
  EXPECT_EQ(tap->size(), 1u);
  y.backward();
  EXPECT_TRUE(at::allclose(w.grad(), 2 * w + x.sum(0)));
}

/// In-place modification after saving: an error, with a tap as without one.
void expect_version_error(bool modify_parameter) {
  auto w = parameter({3});
  auto h = torch::rand({3});
  auto y = (w * h).sum();
  {
    torch::NoGradGuard no_grad;
    (modify_parameter ? w : h).add_(1);
  }
  auto u = h.clone().requires_grad_();
  try {
    ((u * w).sum() + y).backward();
    EXPECT_FALSE(true) << "no error";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("has been modified by an inplace operation"));
  }
}

TEST(SavedTensorTap, InPlaceModificationRaisesAsWithoutATap) {
  expect_version_error(false);
  SavedTensorGuard guard(std::make_shared<CopyingTap>());
  expect_version_error(false);
  struct Declines : SavedTensorTap {
    std::shared_ptr<PackedTensor> pack(const at::Tensor&) override { return nullptr; }
  };
  SavedTensorGuard nested(std::make_shared<Declines>());
  auto w = parameter({3}), v = parameter({3});
  auto y = (w * v).sum();
  {
    torch::NoGradGuard no_grad;
    v.add_(1);
  }
  EXPECT_THROW(y.backward(), c10::Error);
}

struct Strides : SavedTensorTap {
  struct Flat : PackedTensor {
    at::Tensor values;
    at::Tensor unpack() override { return values; }
  };
  std::shared_ptr<PackedTensor> pack(const at::Tensor& tensor) override {
    sizes.push_back(tensor.sizes().vec());
    auto flat = std::make_shared<Flat>();
    flat->values = tensor.to(at::kDouble).contiguous();
    return flat;
  }
  std::vector<std::vector<int64_t>> sizes;
};

/// Saves its input and says in backward how it looked.
struct Inspecting : torch::autograd::Function<Inspecting> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& other) {
    ctx->save_for_backward({other});
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    seen() = ctx->get_saved_variables()[0];
    return {grads[0], at::Tensor()};
  }
  static at::Tensor& seen() {
    static at::Tensor last;
    return last;
  }
};

TEST(SavedTensorTap, DtypeAndStridesAreRestored) {
  const auto base = torch::rand({2, 3, 4, 5});
  const std::vector<at::Tensor> cases{base,
                                      base.contiguous(at::MemoryFormat::ChannelsLast),
                                      base.transpose(1, 3),
                                      base.slice(3, 0, 5, 2),
                                      torch::rand({2, 1, 4, 5}).expand({2, 3, 4, 5}),
                                      torch::rand({}),
                                      torch::rand({0, 3}),
                                      torch::rand({1, 4}).as_strided({1, 4}, {7, 1}),
                                      torch::arange(6).view({2, 3})};
  for (const auto& saved : cases) {
    auto tap = std::make_shared<Strides>();
    auto x = parameter({2});
    {
      SavedTensorGuard guard(tap);
      Inspecting::apply(x, saved).sum().backward();
    }
    const auto seen = std::exchange(Inspecting::seen(), {});
    EXPECT_EQ(tap->sizes.size(), 1u);
    EXPECT_EQ(seen.scalar_type(), saved.scalar_type());
    EXPECT_EQ(seen.sizes(), saved.sizes());
    EXPECT_EQ(seen.strides(), saved.strides());
    EXPECT_TRUE(at::equal(seen, saved));
    EXPECT_FALSE(seen.is_alias_of(saved));
  }
}

TEST(SavedTensorTap, ExpandedOnceAndOverlappingNotAtAll) {
  auto tap = std::make_shared<Strides>();
  SavedTensorGuard guard(tap);
  auto x = parameter({2});
  Inspecting::apply(x, torch::rand({2, 1}).expand({2, 1000}));
  EXPECT_THAT(tap->sizes, ::testing::ElementsAre(std::vector<int64_t>{2, 1}));
  const auto windows = torch::rand({6}).unfold(0, 3, 1);
  Inspecting::apply(x, windows).sum().backward();
  EXPECT_EQ(tap->sizes.size(), 1u);
  EXPECT_TRUE(at::equal(Inspecting::seen(), windows));
  EXPECT_TRUE(std::exchange(Inspecting::seen(), {}).is_alias_of(windows));
}

TEST(SavedTensorTap, InnermostIsAskedFirstAndMayDecline) {
  struct Large : CopyingTap {
    std::shared_ptr<PackedTensor> pack(const at::Tensor& t) override {
      return t.numel() > 10 ? CopyingTap::pack(t) : nullptr;
    }
  };
  auto outer = std::make_shared<CopyingTap>();
  auto inner = std::make_shared<Large>();
  auto x = parameter({20}), y = parameter({2});
  SavedTensorGuard a(outer);
  {
    SavedTensorGuard b(inner);
    (x.exp().sum() + y.exp().sum()).backward();
  }
  EXPECT_THAT(inner->names, ::testing::ElementsAre("[20]"));
  EXPECT_THAT(outer->names, ::testing::ElementsAre("[2]"));
  EXPECT_TRUE(at::equal(x.grad(), x.exp()));
}

TEST(SavedTensorTap, UnpacksAfterTheGuardAndFreesTheGraph) {
  auto x = parameter({3});
  std::weak_ptr<PackedTensor> packed;
  struct Weak : CopyingTap {
    std::shared_ptr<PackedTensor> pack(const at::Tensor& t) override {
      auto result = CopyingTap::pack(t);
      *last = result;
      return result;
    }
    std::weak_ptr<PackedTensor>* last;
  };
  {
    at::Tensor y;
    {
      auto tap = std::make_shared<Weak>();
      tap->last = &packed;
      SavedTensorGuard guard(tap);
      y = x.exp();
    }
    EXPECT_FALSE(packed.expired());
    y.sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), x.exp()));
  }
  EXPECT_TRUE(packed.expired());
}

TEST(SavedTensorTap, DeclinedOutputsMakeNoCycle) {
  struct Declines : SavedTensorTap {
    std::shared_ptr<PackedTensor> pack(const at::Tensor&) override { return nullptr; }
  };
  SavedTensorGuard guard(std::make_shared<Declines>());
  auto x = parameter({3});
  c10::weak_intrusive_ptr<c10::StorageImpl> storage = [&] { return x.exp().storage().getWeakStorageImpl(); }();
  EXPECT_TRUE(storage.expired());
}

TEST(SavedTensorTap, DoubleBackward) {
  auto x = parameter({3});
  auto tap = std::make_shared<CopyingTap>();
  SavedTensorGuard guard(tap);
  auto y = (x * x * x).exp().sum();
  auto g = torch::autograd::grad({y}, {x}, {}, true, true)[0];
  auto gg = torch::autograd::grad({g.sum()}, {x})[0];
  const auto v = x.detach().to(at::kDouble);
  const auto e = (v * v * v).exp();
  EXPECT_TRUE(at::allclose(gg, (e * (9 * v * v * v * v + 6 * v)).to(at::kFloat), 1e-4, 1e-4));
}

TEST(SavedTensorTap, ClientMustNotModifyWhatItGets) {
  struct Modifies : CopyingTap {
    std::shared_ptr<PackedTensor> pack(const at::Tensor& t) override {
      t.add_(1);
      return CopyingTap::pack(t);
    }
  };
  auto x = parameter({3});
  SavedTensorGuard guard(std::make_shared<Modifies>());
  EXPECT_THROW(x.exp(), c10::Error);
}

TEST(SavedTensorTap, ExceptionsOfAClientLeaveTheOperatorOrBackward) {
  struct Fails : SavedTensorTap {
    struct Packed : PackedTensor {
      at::Tensor unpack() override { throw std::domain_error("cannot unpack"); }
    };
    struct WrongSizes : PackedTensor {
      at::Tensor unpack() override { return torch::zeros({7}); }
    };
    std::shared_ptr<PackedTensor> pack(const at::Tensor& t) override {
      if (t.numel() == 3) throw std::domain_error("cannot pack");
      if (t.numel() == 4) return std::make_shared<WrongSizes>();
      return std::make_shared<Packed>();
    }
  };
  SavedTensorGuard guard(std::make_shared<Fails>());
  auto x = parameter({3}), y = parameter({2}), z = parameter({4});
  EXPECT_THROW(x.exp(), std::domain_error);
  EXPECT_ANY_THROW(y.exp().sum().backward());
  EXPECT_THROW(z.exp().sum().backward(), c10::ValueError);
  EXPECT_TRUE((x + 1).defined());
}

TEST(SavedTensorTap, WrongOrderIsLogged) {
  auto log = LogCapture::install();
  auto x = parameter({3});
  auto first = std::make_shared<CopyingTap>(), second = std::make_shared<CopyingTap>();
  auto a = std::make_unique<SavedTensorGuard>(first);
  auto b = std::make_unique<SavedTensorGuard>(second);
  a.reset();
  x.exp().sum().backward();
  b.reset();
  x.exp().sum().backward();
  log->restore();
  EXPECT_EQ(first->size(), 0u);
  EXPECT_EQ(second->size(), 1u);
  EXPECT_THAT(log->text, ::testing::HasSubstr("SavedTensorGuard: destroyed out of order"));
}

TEST(SavedTensorTap, NullIsRefusedAndTheEngineIsOurs) {
  EXPECT_THROW(SavedTensorGuard(nullptr), c10::ValueError);
  install_saved_tensor_taps();
  install_saved_tensor_taps();
  EXPECT_FALSE(foreign_autograd_engine());
}

}  // namespace
}  // namespace bellows::tap::testing
