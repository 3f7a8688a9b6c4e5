#include "bellows/system/call_site.h"

#include <gmock/gmock.h>

#include <functional>

// Frames in namespace bellows are skipped: the user's code stands outside.
namespace a_users_program {

[[gnu::noinline]] std::string asks_for_its_place() {
  std::string place = bellows::call_site();
  place += "";  // keeps this frame: no tail call
  return place;
}

namespace {
[[gnu::noinline]] std::string hidden_function(const std::function<std::string()>& ask) {
  std::string place = ask();
  place += "";
  return place;
}
}  // namespace

TEST(CallSite, NamesTheFunctionThatCalled) {
  EXPECT_THAT(asks_for_its_place(), testing::HasSubstr("a_users_program::asks_for_its_place"));
}

TEST(CallSite, GivesAnAddressInTheProgram) {
  EXPECT_THAT(asks_for_its_place(), testing::ContainsRegex("\\(system_test\\+0x[0-9a-f]+\\)"));
}

TEST(CallSite, SkipsTheStandardLibraryAndFindsStaticFunctions) {
  EXPECT_THAT(hidden_function(bellows::call_site), testing::HasSubstr("hidden_function"));
}

}  // namespace a_users_program
