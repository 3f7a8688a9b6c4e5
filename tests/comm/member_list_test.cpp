#include "bellows/comm/elastic/member_list.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace bellows::comm {

namespace {

std::string published(const Store& store) {
  return store.find(membership_key).value_or("");
}

}  // namespace

TEST(MemberList, ProcessesThatStayComeFirst) {
  const Store store = Store::serve("127.0.0.1", 0);
  MemberList members(store, 3);
  EXPECT_EQ(published(store), "0 1: 0 1 2");
  members.remove(0);
  EXPECT_EQ(published(store), "1 1: 1 2");
  EXPECT_EQ(members.add(0), 3);
  members.admit_ready();
  EXPECT_EQ(published(store), "1 1: 1 2") << "not ready";
  EXPECT_FALSE(members.takes_part(3));
  store.set(ready_key(3), "1");
  members.admit_ready();
  EXPECT_EQ(published(store), "2 1: 1 2 3");
  EXPECT_TRUE(members.takes_part(3));
}

TEST(MemberList, OnlyCompleteReplicasTakePart) {
  const Store store = Store::serve("127.0.0.1", 0);
  MemberList members(store, 4);
  store.set(ranks_per_replica_key, "2");
  members.admit_ready();
  EXPECT_EQ(published(store), "1 2: 0 1 2 3");
  EXPECT_TRUE(members.can_spare(0));
  members.remove(0);
  EXPECT_EQ(published(store), "2 2: 2 3");
  EXPECT_TRUE(members.can_spare(1)) << "it waits";
  EXPECT_FALSE(members.can_spare(3));
  members.remove(1);
  EXPECT_EQ(published(store), "2 2: 2 3") << "nothing changes for the ranks";
  const int one = members.add(1), zero = members.add(0);
  store.set(ready_key(one), "1");
  members.admit_ready();
  EXPECT_FALSE(members.takes_part(one));
  store.set(ready_key(zero), "1");
  members.admit_ready();
  EXPECT_EQ(published(store), "3 2: 2 3 5 4") << "each process keeps its position";
}

TEST(MemberList, TextsAreParsed) {
  const Membership members = Membership::parse("3 2: 0 1 5 4");
  EXPECT_EQ(members.generation, 3);
  EXPECT_EQ(members.ranks_per_replica, 2);
  EXPECT_EQ(members.rank_of(4), 3);
  EXPECT_EQ(members.rank_of(2), std::nullopt);
  for (const char* text : {"", "3 2:", "3 2: 0 1 5", "3 0: 1", "3 1: 1 1", "3: 0 1"})
    EXPECT_THROW(Membership::parse(text), c10::ValueError) << text;
}

}  // namespace bellows::comm
