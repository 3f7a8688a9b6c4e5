#include <gtest/gtest.h>

#include "bellows/export/sizes.h"

namespace bellows::export_detail {
namespace {

/// Recordings: the example, another batch, another length, and other sizes of both.
const std::vector<Symbol> symbols{{"batch", {{2, 3, 2, 5}}}, {"length", {{12, 12, 13, 17}}}};

std::string text(const std::vector<int64_t>& values) {
  const auto expression = express({values}, symbols);
  return expression ? expression->text(symbols) : "none";
}

TEST(Sizes, ConstantsAndSymbols) {
  EXPECT_EQ(text({7, 7, 7, 7}), "7");
  EXPECT_EQ(text({2, 3, 2, 5}), "batch");
  EXPECT_EQ(text({12, 12, 13, 17}), "length");
}

TEST(Sizes, SumsProductsAndQuotients) {
  EXPECT_EQ(text({25, 25, 27, 35}), "2*length + 1");
  EXPECT_EQ(text({14, 15, 15, 22}), "batch + length");
  EXPECT_EQ(text({24, 36, 26, 85}), "batch*length");
  EXPECT_EQ(text({96, 144, 104, 340}), "4*batch*length");
  EXPECT_EQ(text({6, 6, 7, 9}), "floor((length + 1)/2)");
}

TEST(Sizes, TheLastRecordingRefutesWrongExpressions) {
  EXPECT_EQ(text({4, 9, 4, 25}), "none");     // the square of the batch
  EXPECT_EQ(text({14, 15, 15, 23}), "none");  // the sum, plus one in the last recording
  EXPECT_EQ(text({24, 36, 26, 84}), "none");
}

TEST(Sizes, SymbolOfAnExpression) {
  EXPECT_EQ(express({{12, 12, 13, 17}}, symbols)->symbol(), 1u);
  EXPECT_FALSE(express({{13, 13, 14, 18}}, symbols)->symbol());
}

}  // namespace
}  // namespace bellows::export_detail
