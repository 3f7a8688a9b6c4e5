#include "support.h"

#include <gmock/gmock.h>

namespace bellows::tap::testing {
namespace {

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

at::Tensor pending_like(const at::Tensor& other) {
  return tensor_over(c10::Storage(make_pending_storage(other.nbytes(), other.device())), other.key_set(), other.dtype(),
                     other.sizes(), other.strides(), 0, false);
}

TEST(PendingStorage, ViewsBecomeRealWithIt) {
  const auto computed = torch::arange(6.).view({2, 3});
  const auto pending = pending_like(computed), row = pending.select(0, 1), copy = pending.detach();
  auto* const storage = pending.storage().unsafeGetStorageImpl();
  EXPECT_TRUE(is_pending(*storage));
  EXPECT_TRUE(row.is_alias_of(copy));
  for (const auto& one : {pending, row, copy}) {
    EXPECT_THAT(error_of([&] { one.data_ptr(); }), ::testing::HasSubstr("Call bellows::sync()"));
    EXPECT_THAT(error_of([&] { one.const_data_ptr(); }), ::testing::HasSubstr("has no value yet"));
    EXPECT_THAT(error_of([&] { one + 1; }), ::testing::HasSubstr("has no value yet"));
  }
  fulfil(*storage, *computed.storage().unsafeGetStorageImpl());
  EXPECT_FALSE(is_pending(*storage));
  EXPECT_EQ(row.sum().item<double>(), 12);
  EXPECT_EQ(copy.data_ptr(), pending.data_ptr());
}

TEST(PendingStorage, AbandonedOnesSayWhy) {
  const auto pending = pending_like(torch::ones({2}));
  abandon(*pending.storage().unsafeGetStorageImpl(), "the test gave up");
  EXPECT_THAT(error_of([&] { pending.data_ptr(); }), ::testing::HasSubstr("the test gave up"));
}

TEST(StorageHolds, GuardOneClientsStorageAndNotWhatSeveralShare) {
  const auto x = torch::ones({2});
  const auto touch = [&] { return error_of([&] { x.data_ptr(); }); };
  StorageHolds first, second;
  first.hold(x.storage(), true);
  EXPECT_THAT(touch(), ::testing::HasSubstr("have not run yet"));
  first.open();
  EXPECT_EQ(touch(), "");
  first.release();
  first.hold(x.storage(), true);
  second.hold(x.storage(), true);
  EXPECT_EQ(touch(), "");
  second.release();
  EXPECT_EQ(touch(), "");
  first.release();
  first.hold(x.storage(), false);
  EXPECT_EQ(touch(), "");
  second.hold(x.storage(), true);
  EXPECT_EQ(touch(), "");
}

TEST(OpenStorages, NoStorageBecomesGuarded) {
  const auto x = torch::ones({2}), y = torch::ones({2});
  const auto touch = [](const at::Tensor& tensor) { return error_of([&] { tensor.data_ptr(); }); };
  StorageHolds first, second;
  first.hold(x.storage(), true);
  {
    const OpenStorages open;
    EXPECT_FALSE(open.all_open());
    second.hold(y.storage(), true);
    EXPECT_NE(touch(x), "") << "it was guarded before";
    EXPECT_EQ(touch(y), "");
  }
  first.release();
  second.release();
  EXPECT_TRUE(OpenStorages().all_open());
  second.hold(y.storage(), true);
  EXPECT_NE(touch(y), "");
}

TEST(StorageHolds, CopyOnWriteStaysWhatItWas) {
  const auto x = torch::ones({2}), lazy = at::_lazy_clone(x);
  {
    StorageHolds holds;
    holds.hold(lazy.storage(), true);
    EXPECT_NE(error_of([&] { lazy.mutable_data_ptr(); }), "");
  }
  lazy.add_(1);
  EXPECT_EQ(x.sum().item<float>(), 2);
  EXPECT_EQ(lazy.sum().item<float>(), 4);
}

struct Deferring : NotingTap, Deferral {
  void sync() override {
    ++syncs;
    torch::ones({1});  // goes to the outer clients
  }
  void set_deferring(bool on) override { off += on ? -1 : 1; }
  int syncs = 0, off = 0;
};

TEST(Deferral, SyncReachesTheInnermostAndRunsBelowIt) {
  auto outer = std::make_shared<NotingTap>(), inner = std::make_shared<NotingTap>();
  auto deferring = std::make_shared<Deferring>();
  sync();
  EXPECT_EQ(active_deferral(), nullptr);
  const OpTapGuard a(outer);
  {
    const OpTapGuard b(deferring);
    const OpTapGuard c(inner);
    EXPECT_EQ(active_deferral(), deferring);
    sync();
    EXPECT_EQ(deferring->syncs, 1);
    EXPECT_EQ(outer->count("aten::ones"), 1u);
    EXPECT_EQ(inner->size() + deferring->size(), 0u);
    torch::zeros({1});
    EXPECT_TRUE(inner->has("aten::zeros") && deferring->has("aten::zeros"));
    bellows::tap::thread([&] { sync(); }).join();
    EXPECT_EQ(deferring->syncs, 2);
    std::thread([] { sync(); }).join();
    EXPECT_EQ(deferring->syncs, 2);
    {
      const EagerGuard all, again;
      EXPECT_EQ(deferring->syncs, 4);
      EXPECT_EQ(deferring->off, 2);
    }
    EXPECT_EQ(deferring->off, 0);
  }
  EXPECT_EQ(active_deferral(), nullptr);
}

}  // namespace
}  // namespace bellows::tap::testing
