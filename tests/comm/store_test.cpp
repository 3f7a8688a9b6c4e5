#include "bellows/comm/rendezvous/store.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "bellows/comm/rendezvous/token.h"
#include "bellows/system/random_token.h"
#include "tests/support/errors.h"

namespace bellows::comm {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void expect_store_works(const Store& one, const Store& other) {
  EXPECT_EQ(one.find("a"), std::nullopt);
  one.set("a", "1");
  EXPECT_EQ(other.find("a"), "1");
  EXPECT_EQ(one.set_first("b", "first"), "first");
  EXPECT_EQ(other.set_first("b", "second"), "first");
  EXPECT_EQ(other.wait_for("c", 0.2), std::nullopt);
  std::thread later([&] { one.set("c", std::string("\0x", 2)); });
  EXPECT_EQ(other.wait_for("c", 20), std::string("\0x", 2));
  later.join();
  one.under("p/").set("a", "2");
  EXPECT_EQ(other.find("a"), "1");
  EXPECT_EQ(other.under("p/").find("a"), "2");
  EXPECT_EQ(other.another().find("a"), "1");
}

}  // namespace

TEST(Store, OverTcp) {
  const Store server = Store::serve("127.0.0.1", 0);
  ASSERT_GT(server.port(), 0);
  expect_store_works(server, Store::join("127.0.0.1", server.port(), 20));
}

TEST(Store, InAFile) {
  const std::string path = std::filesystem::temp_directory_path() / ("bellows-store-" + std::to_string(getpid()));
  {
    const Store one = Store::in_file(path, 2), other = Store::in_file(path, 2);
    expect_store_works(one, other);
  }
  std::filesystem::remove(path);
}

TEST(Store, ListensOnTheGivenAddressOnly) {
  const Store server = Store::serve("127.0.0.1", 0);
  char wanted[32];
  std::snprintf(wanted, sizeof wanted, "0100007F:%04X", server.port());
  bool found = false;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      char port[16];
      std::snprintf(port, sizeof port, ":%04X ", server.port());
      const bool listens =
          line.find(" 0A ") != line.npos && line.find(port) < 60 && line.find(port) < line.find(" 0A ");
      if (!listens) continue;
      EXPECT_THAT(line, HasSubstr(wanted));
      found = true;
    }
  }
  EXPECT_TRUE(found);
}

TEST(Store, SaysThatAPortIsInUse) {
  const Store server = Store::serve("127.0.0.1", 0);
  EXPECT_THAT(message_of([&] { Store::serve("127.0.0.1", server.port()); }),
              AllOf(HasSubstr("port " + std::to_string(server.port())), HasSubstr("is in use")));
  EXPECT_THAT(message_of([] { Store::serve("203.0.113.1", 0); }),
              HasSubstr("203.0.113.1 is not an address of this machine"));
  EXPECT_THAT(message_of([] { Store::serve("no.such.host.invalid", 0); }), HasSubstr("cannot be resolved"));
}

TEST(Store, SaysThatNobodyServes) {
  int port = 0;
  {
    const Store server = Store::serve("127.0.0.1", 0);
    port = server.port();
  }
  EXPECT_THAT(message_of([&] { Store::join("127.0.0.1", port, 1); }),
              AllOf(HasSubstr("no store answered at 127.0.0.1:"), HasSubstr("within 1 s")));
}

TEST(Store, NamesTheLimitOfOpenFiles) {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  none.rlim_cur = 0;
  setrlimit(RLIMIT_NOFILE, &none);
  const std::string joined = message_of([] { Store::join("127.0.0.1", 1, 60); });
  const std::string served = message_of([] { Store::serve("127.0.0.1", 0); });
  setrlimit(RLIMIT_NOFILE, &before);
  for (const std::string& message : {joined, served})
    EXPECT_THAT(message, HasSubstr("may open 0 files: raise the limit with `ulimit -n`"));
}

TEST(Store, AFileNeedsAFolder) {
  EXPECT_THAT(message_of([] { Store::in_file("/no/such/folder/store", 1); }),
              HasSubstr("cannot write to /no/such/folder/: No such file or directory"));
}

TEST(Token, SignsAndIsNew) {
  EXPECT_EQ(random_token().size(), 32u);
  EXPECT_NE(random_token(), random_token());
  // RFC 4231, test case 2.
  EXPECT_EQ(sign("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_NE(sign("a", "text"), sign("b", "text"));
}

}  // namespace bellows::comm
