#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "bellows/io/archives/zip.h"
#include "bellows/io/tensors/torch_file.h"
#include "tests/io/support.h"

namespace bellows::io {

using TorchTest = FolderTest;

namespace {

const void* memory_of(const at::Tensor& tensor) {
  return tensor.storage().data();
}

/// What tools/goldens/io.py wrote as `tricky_value`.
void expect_tricky(const PickleValue& value) {
  const at::Tensor base = at::arange(24, c10::kFloat).reshape({2, 3, 4});
  ASSERT_TRUE(value.is_dict());
  EXPECT_EQ(value.size(), 32U);
  EXPECT_TRUE(value.at("base").as_tensor().equal(base));
  EXPECT_TRUE(value.at("transposed").as_tensor().equal(base.transpose(0, 2)));
  EXPECT_EQ(value.at("transposed").as_tensor().strides(), (c10::IntArrayRef{1, 4, 12}));
  EXPECT_EQ(memory_of(value.at("transposed").as_tensor()), memory_of(value.at("base").as_tensor()));
  EXPECT_EQ(value.at("tail").as_tensor().storage_offset(), 16);
  EXPECT_TRUE(value.at("channels_last").as_tensor().is_contiguous(c10::MemoryFormat::ChannelsLast));
  EXPECT_EQ(value.at("bf16").as_tensor().to(c10::kFloat)[1].item<float>(), -3.140625F);
  EXPECT_EQ(value.at("bf16").as_tensor().to(c10::kFloat)[2].item<float>(), std::numeric_limits<float>::infinity());
  EXPECT_EQ(value.at("bool").as_tensor().scalar_type(), c10::kBool);
  EXPECT_EQ(value.at("int64").as_tensor()[2].item<int64_t>(), int64_t{1} << 62);
  EXPECT_EQ(value.at("complex").as_tensor().scalar_type(), c10::kComplexFloat);
  EXPECT_EQ(value.at("uint16").as_tensor().to(c10::kInt)[1].item<int>(), 65535);
  EXPECT_EQ(value.at("fp8").as_tensor().to(c10::kFloat)[1].item<float>(), -448.0F);
  EXPECT_EQ(value.at("scalar").as_tensor().dim(), 0);
  EXPECT_EQ(value.at("empty").as_tensor().sizes(), (c10::IntArrayRef{0, 3}));
  EXPECT_EQ(value.at("expanded").as_tensor().strides(), (c10::IntArrayRef{0}));
  EXPECT_TRUE(value.at("parameter").as_tensor().requires_grad());
  EXPECT_FALSE(value.at("base").as_tensor().requires_grad());
}

void expect_tricky_scalars(const PickleValue& value) {
  EXPECT_TRUE(value.at("none").is_none());
  EXPECT_TRUE(value.at("true").as_bool());
  EXPECT_EQ(value.at("int").as_int(), -5);
  EXPECT_EQ(value.at("big").as_int(), int64_t{1} << 40);
  EXPECT_EQ(value.at("negative").as_int(), INT64_MIN);
  EXPECT_EQ(value.at("float").as_double(), 0.1);
  EXPECT_EQ(value.at("text").as_string(), "naïve “text” 🔥");
  const std::string& bytes = value.at("bytes").as_string();
  ASSERT_EQ(bytes.size(), 256U);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(static_cast<unsigned char>(bytes[i]), i);
  EXPECT_EQ(value.at("no_bytes").kind(), PickleValue::Kind::bytes);
  EXPECT_EQ(value.at("list").at_index(1).at_index(1).as_string(), "x");
  EXPECT_EQ(value.at("list").at_index(2).kind(), PickleValue::Kind::tuple);
  EXPECT_TRUE(value.at("ordered").is_ordered_dict());
  EXPECT_EQ(value.at("ordered").items()[0].first.as_string(), "b");
  EXPECT_EQ(value.at(3).as_string(), "int key");
  EXPECT_EQ(value.at(PickleValue::tuple({"k", 1})).as_string(), "tuple key");
  EXPECT_EQ(value.at("size").at_index(1).as_int(), 5);
  EXPECT_EQ(value.at("dtype").as_dtype(), c10::kBFloat16);
  EXPECT_EQ(value.at("device").as_device(), c10::Device(c10::kCUDA, 1));
  EXPECT_EQ(value.at("set").at_index(0).as_int(), 17);
}

}  // namespace

TEST_F(TorchTest, ReadsWhatPythonWrites) {
  const PickleValue value = torch_load(golden("tricky.pt"));
  expect_tricky(value);
  expect_tricky_scalars(value);
}

TEST_F(TorchTest, WritesWhatItRead) {
  torch_save(path("tricky.pt"), torch_load(golden("tricky.pt")));
  const PickleValue value = torch_load(path("tricky.pt"));
  expect_tricky(value);
  expect_tricky_scalars(value);
  torch_save(path("training.pt"), torch_load(golden("training.pt")));
  const PickleValue state = torch_load(path("training.pt"));
  EXPECT_EQ(state.at("optimizer").at("state").at(0).at("step").as_tensor().item<float>(), 2.0F);
  EXPECT_EQ(state.at("optimizer").at("param_groups").at_index(0).at("lr").as_double(), 1e-2);
}

TEST_F(TorchTest, StoragesAreAlignedWholeAndWrittenOnce) {
  const at::Tensor base = at::arange(1000, c10::kFloat);
  torch_save(path("views.pt"), NamedTensors{{"a", base.narrow(0, 3, 2)}, {"b", base.reshape({10, 100}).t()}});
  const MappedFile file(path("views.pt"));
  const ZipReader zip(file.bytes(), "views.pt");
  ASSERT_NE(zip.find("archive/data/0"), nullptr);
  EXPECT_EQ(zip.find("archive/data/1"), nullptr);
  EXPECT_EQ(zip.find("archive/data/0")->offset % 64, 0U);
  EXPECT_EQ(zip.find("archive/data/0")->data.size(), 4000U);
  const NamedTensors back = load_tensors(path("views.pt"));
  back[0].second.fill_(-1);
  EXPECT_EQ(back[1].second[3][0].item<float>(), -1.0F) << "still one storage";
}

TEST_F(TorchTest, LoadTensorsFindsTheTensors) {
  EXPECT_EQ(load_tensors(golden("flat.pt"))[1].first, "v");
  const NamedTensors nested = load_tensors(golden("training.pt"));
  EXPECT_EQ(nested.size(), 9U);
  EXPECT_EQ(nested[0].first, "0.weight");
  const std::string mixed = value_error([] { load_tensors(golden("mixed.pt")); });
  EXPECT_TRUE(has(mixed, "expected a dict of tensors")) << mixed;
  EXPECT_TRUE(has(mixed, "\"nested\": a dict of 1")) << mixed;
  EXPECT_TRUE(has(value_error([] { load_tensors(golden("tensor.pt")); }), "found a Float tensor [2, 3]"));
}

TEST_F(TorchTest, ReadsOtherVariantsOfTheFormat) {
  const at::Tensor w = at::arange(4, c10::kFloat);
  for (const char* name : {"flat.pt", "big_endian.pt", "zip64.pt", "no_crc.pt", "protocol4.pt"}) {
    EXPECT_TRUE(torch_load(golden(name)).at("w").as_tensor().equal(w)) << name;
  }
  EXPECT_EQ(torch_load(golden("big_endian.pt")).at("v").as_tensor()[1].item<int>(), 2);
}

// The format before PyTorch 1.6, which many weight files of torchvision have. "legacy_2017.pt" rebuilds its tensors like
// PyTorch 0.1 (four arguments), and its storages come in another order than its tensors.
TEST_F(TorchTest, ReadsTheFormatBefore16) {
  EXPECT_TRUE(load_tensors(golden("legacy.pt")).at(0).second.equal(at::arange(4, c10::kFloat)));
  const NamedTensors tensors = load_tensors(golden("legacy_2017.pt"));
  ASSERT_EQ(tensors.size(), 5U);
  EXPECT_EQ(tensors[0].first, "features.0.weight");
  EXPECT_TRUE(tensors[0].second.equal(at::arange(24, c10::kFloat).reshape({2, 3, 4})));
  EXPECT_TRUE(tensors[1].second.equal(at::arange(24, c10::kFloat).reshape({2, 3, 4}).transpose(0, 2)));
  EXPECT_EQ(memory_of(tensors[1].second), memory_of(tensors[0].second));
  EXPECT_TRUE(tensors[2].second.equal(at::arange(5, c10::kHalf)));
  EXPECT_EQ(tensors[3].second.sizes(), (c10::IntArrayRef{0, 3}));
  EXPECT_EQ(tensors[4].second.item<int64_t>(), int64_t{1} << 40);
}

TEST_F(TorchTest, DamagedFilesBefore16AreNamed) {
  const std::string good = read_text_file(golden("legacy_2017.pt"));
  const auto message = [&](const std::string& bytes) {
    write_text_file(path("damaged.pt"), bytes);
    return value_error([&] { load_tensors(path("damaged.pt")); });
  };
  for (size_t size = 15; size < good.size(); ++size) {
    const std::string error = message(good.substr(0, size));
    EXPECT_TRUE(has(error, "damaged.pt: ") && has(error, "truncated")) << size << ": " << error;
  }
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string bytes = good;
    const size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return bytes.replace(at, from.size(), to);
  };
  // "little_endian" is followed by a memo opcode and True.
  const size_t flag = good.find("little_endian") + 13;
  std::string swapped = good;
  swapped[swapped.find('\x88', flag)] = '\x89';
  EXPECT_TRUE(has(message(swapped), "big-endian")) << message(swapped);
  EXPECT_TRUE(has(message(replaced("storage", "modules")), "five or six parts of a storage"));
  EXPECT_TRUE(has(message(replaced("FloatStorage", "FloatSt0rage")), "FloatSt0rage"));
}

TEST_F(TorchTest, NamesWhatItDoesNotRead) {
  const auto message = [](const char* name) { return value_error([&] { load_tensors(golden(name)); }); };
  EXPECT_TRUE(has(message("script.pt"), "TorchScript program")) << message("script.pt");
  EXPECT_TRUE(has(message("foreign_class.pt"), "an object of \"pathlib.PurePosixPath\""))
      << message("foreign_class.pt");
  EXPECT_TRUE(has(message("deflated.pt"), "is compressed or encrypted")) << message("deflated.pt");
  EXPECT_TRUE(has(message("other.zip"), "found \"readme.txt\"")) << message("other.zip");
  EXPECT_TRUE(has(message("shard.tar.gz"), "found a gzip file")) << message("shard.tar.gz");
  EXPECT_TRUE(has(message("shard.tar"), "found a tar archive")) << message("shard.tar");
  EXPECT_TRUE(has(message("images/rgb.png"), "found a PNG image"));
  write_text_file(path("pointer"), "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n");
  EXPECT_TRUE(has(value_error([&] { load_tensors(path("pointer")); }), "a git-lfs pointer"));
  write_text_file(path("page"), "<!DOCTYPE html><html></html>");
  EXPECT_TRUE(has(value_error([&] { load_tensors(path("page")); }), "an HTML page"));
  write_text_file(path("nothing"), "");
  EXPECT_TRUE(has(value_error([&] { load_tensors(path("nothing")); }), "an empty file"));
  write_text_file(path("keras"), "\x89HDF\r\n\x1a\n and so on");
  EXPECT_TRUE(has(value_error([&] { load_tensors(path("keras")); }), "an HDF5 file"));
}

TEST_F(TorchTest, DamageIsNoticedByTheChecksum) {
  std::string file = read_text_file(golden("flat.pt"));
  const MappedFile mapped(golden("flat.pt"));
  const uint64_t offset = ZipReader(mapped.bytes(), "x").find("flat/data/0")->offset;
  file[offset + 5] ^= 0x10;
  const std::string message = value_error([&] { torch_load_bytes(as_bytes(file), "x.pt"); });
  EXPECT_TRUE(has(message, "x.pt: byte ") &&
              has(message, "\"flat/data/0\" at byte " + std::to_string(offset) + " (16 bytes) should have CRC-32"))
      << message;
}

TEST_F(TorchTest, AChecksumThatWasZeroedIsDamage) {
  torch_save(path("own.pt"), NamedTensors{{"w", at::arange(4, c10::kFloat)}});
  for (const std::string& name : {golden("flat.pt"), path("own.pt")}) {
    std::string file = read_text_file(name);
    const size_t entry = file.rfind("/data/0") - (name == golden("flat.pt") ? 4 : 7) - 46;  // in the directory
    ASSERT_EQ(file.substr(entry, 4), "PK\1\2");
    file.replace(entry + 16, 4, 4, '\0');
    EXPECT_TRUE(has(value_error([&] { torch_load_bytes(as_bytes(file), "x.pt"); }), "should have CRC-32 0 but has"))
        << name;
  }
}

TEST_F(TorchTest, WriterRefusesWhatTheFormatCannotHold) {
  const auto refuse = [&](const PickleValue& value) {
    return value_error([&] { torch_save(path("refused.pt"), value); });
  };
  const at::Tensor bytes = at::zeros({8}, at::TensorOptions().dtype(c10::kByte));
  EXPECT_TRUE(has(refuse(NamedTensors{{"a", bytes}, {"b", bytes.view(c10::kFloat)}}), "one storage is used as"));
  EXPECT_TRUE(has(refuse(at::Tensor()), "an undefined tensor"));
  EXPECT_TRUE(has(refuse(at::ones({2, 2}).to_sparse()), "expected a dense tensor"));
  EXPECT_TRUE(has(refuse(at::empty({2}, at::TensorOptions().device(c10::kMeta))), "expected a dense tensor"));
  PickleValue deep = PickleValue::list();
  for (int i = 0; i < 300; ++i) deep = PickleValue::list({deep});
  EXPECT_TRUE(has(refuse(deep), "nested deeper than 256"));
  EXPECT_FALSE(std::filesystem::exists(path("refused.pt")));
}

TEST_F(TorchTest, SharedContainersStayShared) {
  PickleValue inner = PickleValue::list({1});
  torch_save(path("shared.pt"), PickleValue::dict({{"a", inner}, {"b", inner}}));
  PickleValue back = torch_load(path("shared.pt"));
  PickleValue a = back.at("a");
  a.push_back(2);
  EXPECT_EQ(back.at("b").size(), 2U);
}

TEST(PickleValueTest, KeysFollowPython) {
  PickleValue dict = PickleValue::dict({{"lr", 0.1}, {1, "one"}});
  dict.set(1.0, "uno");
  dict.set(true, "yes");
  EXPECT_EQ(dict.size(), 2U);
  EXPECT_EQ(dict.at(1).as_string(), "yes");
  EXPECT_FALSE(dict.contains("1"));
  EXPECT_TRUE(
      has(value_error([&] { dict.set(PickleValue::list(), 1); }), "expected a hashable key, found a list of 0"));
  EXPECT_TRUE(
      has(value_error([&] { dict.at("Lr"); }), "but the string \"Lr\" is not one of them. Did you mean \"lr\"?"));
  EXPECT_TRUE(has(value_error([&] { dict.at("lr").as_string(); }), "expected a string, found the float 0.1"));
  EXPECT_TRUE(has(value_error([&] { PickleValue::list({1}).at_index(1); }), "element 1 of a list of 1"));
  EXPECT_TRUE(has(value_error([] {
                    PickleValue(NamedTensors{{"a", at::ones({1})}, {"a", at::ones({1})}});
                  }),
                  "occurs twice"));
}

TEST_F(TorchTest, Zip64FieldsAreWrittenAndRead) {
  ZipWriter writer(path("large.zip"), 100);
  writer.add("small", "text");
  writer.add("large", std::string(150, 'x'));
  writer.add("far", as_bytes("end"), 16);
  writer.close();
  const MappedFile file(path("large.zip"));
  const ZipReader zip(file.bytes(), "large.zip");
  ASSERT_EQ(zip.entries().size(), 3U);
  EXPECT_EQ(as_text(zip.find("large")->data), std::string(150, 'x'));
  EXPECT_EQ(as_text(zip.find("far")->data), "end");
  EXPECT_EQ(zip.find("far")->offset % 16, 0U);
  for (const ZipEntry& entry : zip.entries()) zip.verify(entry);
}

}  // namespace bellows::io
