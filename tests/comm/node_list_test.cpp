#include "bellows/comm/launch/node_list.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"

namespace bellows::comm {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

}  // namespace

TEST(NodeList, ExpandsWhatSlurmWrites) {
  EXPECT_THAT(expand_node_list("login"), ElementsAre("login"));
  EXPECT_THAT(expand_node_list("a,b"), ElementsAre("a", "b"));
  EXPECT_THAT(expand_node_list("gpu[01-03,7],login"), ElementsAre("gpu01", "gpu02", "gpu03", "gpu7", "login"));
  EXPECT_THAT(expand_node_list("n[098-101]"), ElementsAre("n098", "n099", "n100", "n101"));
  EXPECT_THAT(expand_node_list("r[1-2]n[3,5].lan"), ElementsAre("r1n3.lan", "r1n5.lan", "r2n3.lan", "r2n5.lan"));
}

TEST(NodeList, SaysWhatIsWrong) {
  const auto error = [](const char* list) { return message_of([=] { expand_node_list(list); }); };
  EXPECT_THAT(error("gpu[1-3"), HasSubstr("not closed"));
  EXPECT_THAT(error("gpu1-3]"), HasSubstr("has no counterpart"));
  EXPECT_THAT(error("gpu[1[2]]"), HasSubstr("has no counterpart"));
  EXPECT_THAT(error("gpu[3-1]"), HasSubstr("3-1 runs backwards"));
  EXPECT_THAT(error("gpu[1-x]"), HasSubstr("got \"x\""));
  EXPECT_THAT(error("gpu[]"), HasSubstr("got \"\""));
  EXPECT_THAT(error("a,,b"), HasSubstr("a name is empty"));
  EXPECT_THAT(error("gpu[1-99999999]"), HasSubstr("more than"));
  EXPECT_THAT(error("gpu[1-999][1-999]"), HasSubstr("more than"));
  EXPECT_THAT(error("gpu[1-60000,1-60000]"), HasSubstr("with the range 1-60000 the list has more than"));
  EXPECT_THAT(error(""), HasSubstr("a name is empty"));
}

TEST(NodeList, HoldsAtTheLargestNumbers) {
  const auto error = [](const std::string& list) { return message_of([&] { expand_node_list(list); }); };
  EXPECT_THAT(error("n[9223372036854775806-9223372036854775807]"), HasSubstr("got \"9223372036854775806\""));
  EXPECT_THAT(error("n[18446744073709551614-18446744073709551615]"), HasSubstr("got \"18446744073709551614\""));
  EXPECT_THAT(error("n[" + std::string(1000, '0') + "1-99999]"), HasSubstr("at most 18 digits"));
  EXPECT_THAT(expand_node_list("n[999999999999999998-999999999999999999]"),
              ElementsAre("n999999999999999998", "n999999999999999999"));
}

}  // namespace bellows::comm
