#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "bellows/io/archives/zip.h"
#include "bellows/models/exported/size_expression.h"
#include "bellows/system/file.h"
#include "tests/models/exported/reference.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

namespace bellows::models::exported {

namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kProgram = "models/model.json", kWeights = "data/weights/model_weights_config.json";

class ExportedErrorsTest : public testing::Test {
 protected:
  static std::string golden(const std::string& file) { return BELLOWS_SOURCE_DIR "/tests/goldens/exported/" + file; }

  /// Returns the path of a copy in which one record differs. Its checksum is right.
  std::string changed(const std::string& file, const std::string& record,
                      const std::function<std::string(std::string)>& change) const {
    const MappedFile source(golden(file));
    const io::ZipReader reader(source.bytes(), file);
    const std::string path = folder_ / "changed.pt2";
    io::ZipWriter writer(path);
    bool found = false;
    for (const io::ZipEntry& entry : reader.entries()) {
      const bool here = entry.name.ends_with("/" + record);
      found |= here;
      writer.add(entry.name,
                 here ? change(std::string(io::as_text(entry.data))) : std::string(io::as_text(entry.data)));
    }
    EXPECT_TRUE(found) << record;
    writer.close();
    return path;
  }
  std::string replaced(const std::string& file, const std::string& record, const std::string& from,
                       const std::string& to) const {
    return changed(file, record, [&](std::string text) {
      const size_t at = text.find(from);
      EXPECT_NE(at, std::string::npos) << from;
      return at == std::string::npos ? text : text.replace(at, from.size(), to);
    });
  }
  static std::string error_of(const std::string& path) {
    return message_of([&] { load_exported(path); });
  }

  TemporaryFolder folder_;
};

}  // namespace

TEST_F(ExportedErrorsTest, TruncatedArchives) {
  const std::string bytes = read_text_file(golden("tied.pt2"));
  for (const size_t size : {size_t{0}, size_t{10}, bytes.size() / 2, bytes.size() - 4}) {
    write_text_file(folder_ / "short.pt2", bytes.substr(0, size));
    EXPECT_THAT(error_of(folder_ / "short.pt2"), HasSubstr("short.pt2")) << size;
  }
  EXPECT_THAT(error_of(folder_ / "none.pt2"), HasSubstr("none.pt2"));
}

/// A flipped bit is an error, or is in bytes that have no meaning, such as padding and dates.
TEST_F(ExportedErrorsTest, FlippedBytes) {
  const std::string bytes = read_text_file(golden("tied.pt2"));
  const Reference reference(golden("tied.ref"));
  const std::vector<at::Tensor> inputs = reference.list("input");
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> expected = run_seeded(load_exported(golden("tied.pt2")), inputs);
  size_t found = 0, tried = 0;
  for (size_t at = 0; at < bytes.size(); at += 37) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << at % 8));
    write_text_file(folder_ / "flipped.pt2", flipped);
    ++tried;
    try {
      EXPECT_EQ(difference(run_seeded(load_exported(folder_ / "flipped.pt2"), inputs), expected), 0) << at;
    } catch (const c10::ValueError& error) {
      ++found;
    }
  }
  EXPECT_GT(found * 10, tried * 7);
}

TEST_F(ExportedErrorsTest, OtherKindsOfFiles) {
  EXPECT_THAT(message_of([] { load_exported(BELLOWS_SOURCE_DIR "/tests/goldens/models/digits_resnet_w2_script.pt"); }),
              HasSubstr("found a TorchScript program"));
  EXPECT_THAT(message_of([] { load_exported(BELLOWS_SOURCE_DIR "/tests/goldens/models/digits_resnet_w2.pt"); }),
              HasSubstr("found weights of torch.save"));
  write_text_file(folder_ / "text.pt2", "no archive");
  EXPECT_THAT(error_of(folder_ / "text.pt2"), HasSubstr("expected a zip archive"));
}

TEST_F(ExportedErrorsTest, UnknownOperatorsAreNamedWithTheirLine) {
  EXPECT_THAT(
      error_of(replaced("tied.pt2", kProgram, "torch.ops.aten.tanh.default", "torch.ops.mine.tanh.default")),
      AllOf(HasSubstr("node tanh"), HasSubstr("exported.py:"), HasSubstr("mine::tanh.default is not registered")));
  EXPECT_THAT(error_of(replaced("cond.pt2", kProgram, "torch.ops.higher_order.cond", "torch.ops.higher_order.flex")),
              AllOf(HasSubstr("the higher-order operator flex is not supported"), HasSubstr("node ")));
  EXPECT_THAT(error_of(replaced("shapes.pt2", kProgram, "_operator.mul", "_operator.mul3")),
              AllOf(HasSubstr("_operator.mul3"), HasSubstr("this function is not supported")));
}

TEST_F(ExportedErrorsTest, CustomObjectsAreNamed) {
  EXPECT_THAT(error_of(replaced("tied.pt2", kProgram, R"({"parameter":)", R"({"custom_obj":)")),
              HasSubstr("custom object"));
}

TEST_F(ExportedErrorsTest, NewerSchemas) {
  EXPECT_THAT(error_of(replaced("tied.pt2", kProgram, R"("major":8)", R"("major":9)")),
              AllOf(HasSubstr("expected a program of schema version 8"), HasSubstr("9.")));
  EXPECT_THAT(error_of(replaced("tied.pt2", "archive_version", "0", "1")), HasSubstr("in version \"1\""));
}

TEST_F(ExportedErrorsTest, DeepJson) {
  const std::string deep = std::string(10'000, '[') + std::string(10'000, ']');
  EXPECT_THAT(error_of(changed("tied.pt2", kProgram, [&](const std::string&) { return deep; })),
              HasSubstr("deeper nesting"));
  EXPECT_THAT(error_of(changed("tied.pt2", kWeights, [&](const std::string&) { return deep; })),
              HasSubstr("deeper nesting"));
  EXPECT_THAT(error_of(changed("tied.pt2", kProgram, [](std::string text) { return text.substr(0, text.size() / 2); })),
              HasSubstr("invalid JSON"));
}

TEST_F(ExportedErrorsTest, NamesThatDoNotExist) {
  EXPECT_THAT(
      error_of(replaced("tied.pt2", kProgram, R"({"as_tensor":{"name":"tanh"}})", R"({"as_tensor":{"name":"tan"}})")),
      AllOf(HasSubstr("\"tan"), HasSubstr("defined")));
  EXPECT_THAT(
      error_of(replaced("tied.pt2", kProgram, R"("parameter_name":"mix.bias")", R"("parameter_name":"mix.base")")),
      HasSubstr("uses the tensor \"mix.base\", which the archive does not have"));
  EXPECT_THAT(error_of(replaced("tied.pt2", kWeights, "weight_0", "weight_9")), HasSubstr("weight_9"));
}

TEST_F(ExportedErrorsTest, WeightsOutsideTheirFile) {
  const auto error = [&](const std::string& from, const std::string& to) {
    return error_of(replaced("tied.pt2", kWeights, from, to));
  };
  const std::string offset = R"("storage_offset": {"as_int": )", size = R"("sizes": [{"as_int": )";
  EXPECT_THAT(error(offset + "0", offset + "1000"), AllOf(HasSubstr("tensor \""), HasSubstr("has only")));
  EXPECT_THAT(error(offset + "0", offset + "-1"), HasSubstr("at least 0"));
  EXPECT_THAT(error(size, size + "9"), HasSubstr("has only"));
  EXPECT_THAT(error(size, size + "4000000000000000"), HasSubstr("need more than 2^63 bytes"));
  EXPECT_THAT(error(R"("use_pickle": false)", R"("use_pickle": true)"), HasSubstr("pickled"));
}

TEST(SizeExpressionTest, FollowsPython) {
  SizeNames names;
  const auto value = [&](const std::string& text, std::optional<int64_t> s0 = 7) {
    const SizeExpression expression = SizeExpression::parse(text, names);
    SizeValues values(names.size());
    if (const auto name = names.find("s0")) values[*name] = s0;
    if (const auto name = names.find("L['x'][0].size()[1]")) values[*name] = 12;
    return expression.value(values);
  };
  EXPECT_EQ(value("Add(Mul(Integer(2), Symbol('s0', positive=True, integer=True)), Integer(-3))"), 11);
  EXPECT_EQ(value("-7 // 2"), -4);
  EXPECT_EQ(value("-7 % 2"), 1);
  EXPECT_EQ(value("2 + 3 * 2 ** 3"), 26);
  EXPECT_EQ(value("2 <= s0 <= 64"), 1);
  EXPECT_EQ(value("2 <= s0 <= 6"), 0);  // (2 <= 7) <= 6 would be true
  EXPECT_EQ(value("L['x'][0].size()[1] == s0 + 5 and not s0 == 8"), 1);
  EXPECT_EQ(value("s0 > 100 or max(s0, 3) == 7"), 1);
  EXPECT_EQ(value("9007199254740993 - s0"), 9007199254740986);  // not representable as a double
  EXPECT_THROW(value("s0 // 0"), c10::ValueError);
  EXPECT_THROW(value("9223372036854775807 + s0"), c10::ValueError);
  EXPECT_THROW(value("s0 ** 64"), c10::ValueError);
  for (const char* unknown : {"", "(", "sin(s0)", "1.5", "L['x'].stride()[0]", "s0 s0", "Symbol('s0'", "L['x"})
    EXPECT_THROW(SizeExpression::parse(unknown, names), UnsupportedExpression) << unknown;
  EXPECT_THROW(SizeExpression::parse(std::string(200, '('), names), UnsupportedExpression);
}

}  // namespace bellows::models::exported
