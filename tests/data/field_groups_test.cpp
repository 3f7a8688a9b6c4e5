#include "bellows/data/field_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "bellows/data/formats/formats.h"
#include "bellows/io/images/image.h"
#include "tests/data/support.h"
#include "tests/support/errors.h"

namespace bellows::data::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SourcePtr table(const TemporaryFolder& folder, const std::string& text) {
  write_text_file(folder / "t.csv", text);
  return open_files({folder / "t.csv"});
}

std::vector<float> floats_in(const Field& field) {
  std::vector<float> values(field.bytes.size() / sizeof(float));
  std::memcpy(values.data(), field.bytes.data(), field.bytes.size());
  return values;
}

TEST(FieldGroups, MakeOneArrayOfNumbers) {
  const TemporaryFolder folder;
  const SourcePtr source = group_fields(table(folder, "a,b,c\n1,2.5,x\n3,4,y\n"), {{"features", {"b", "a"}}});
  const Sample sample = source->read(1);
  const Field* features = sample.find("features");
  ASSERT_TRUE(features && features->is_array);
  EXPECT_EQ(features->sizes.vec(), std::vector<int64_t>{2});
  EXPECT_THAT(floats_in(*features), ElementsAre(4, 3));
  EXPECT_TRUE(sample.find("c"));
  EXPECT_FALSE(sample.find("a")) << "used fields are gone";
  EXPECT_THAT(number_fields(table(folder, "a,b,c\n1,2.5,x\n")->read(0), {"b"}), ElementsAre("a"));
}

TEST(FieldGroups, DecodeMasksAndScaleThemByTheNearestPixel) {
  const TemporaryFolder folder;
  const at::Tensor mask = torch::arange(4, at::kByte).view({2, 2, 1});
  const auto png = io::encode_png(mask);
  write_shard(folder / "m.tar", {{"s.mask.png", {reinterpret_cast<const char*>(png.data()), png.size()}}});
  const auto mask_of = [&](int64_t side) {
    const Sample sample =
        group_fields(open_files({folder / "m.tar"}), {{"target", {"mask.png"}, side, side, /*mask=*/true}})->read(0);
    const Field* field = sample.find("target");
    EXPECT_EQ(field->dtype, at::kByte);
    return std::make_pair(field->sizes.vec(), std::vector<int>(reinterpret_cast<const uint8_t*>(field->bytes.data()),
                                                               reinterpret_cast<const uint8_t*>(field->bytes.data()) +
                                                                   field->bytes.size()));
  };
  EXPECT_EQ(mask_of(0), (std::make_pair(std::vector<int64_t>{2, 2}, std::vector<int>{0, 1, 2, 3})));
  EXPECT_EQ(mask_of(4), (std::make_pair(std::vector<int64_t>{4, 4},
                                        std::vector<int>{0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 3, 3, 2, 2, 3, 3})));
}

TEST(FieldGroups, SayWhatIsWrong) {
  const TemporaryFolder folder;
  const SourcePtr source = table(folder, "a,b\n1,x\n");
  const auto message_with = [&](const std::vector<FieldGroup>& groups) {
    return bellows::message_of([&] { group_fields(source, groups)->read(0); });
  };
  EXPECT_THAT(message_with({{"target", {"price"}}}), HasSubstr("has no field \"price\"; it contains a, b"));
  EXPECT_THAT(message_with({{"target", {"b"}}}), HasSubstr("expected a number, found \"x\""));
  EXPECT_THAT(message_with({{"target", {}}}), HasSubstr("needs a name and at least one field"));
  EXPECT_THAT(message_with({{"t", {"a"}}, {"t", {"b"}}}), HasSubstr("two groups are called \"t\""));
}

}  // namespace
}  // namespace bellows::data::testing
