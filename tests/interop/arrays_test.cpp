#include "bellows/data/formats/array_source.h"
#include "bellows/io/archives/zip.h"
#include "bellows/io/tensors/npy.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/targets.h"
#include "tests/interop/support.h"

namespace bellows::data::testing {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kDtypes[] = {"bool",  "uint8",   "int8",   "uint16", "int16",   "float16",   "uint32",
                                   "int32", "float32", "uint64", "int64",  "float64", "complex64", "complex128"};

const std::string kTables = std::string(BELLOWS_SOURCE_DIR) + "/tests/goldens/interop/tables/";

const Json& numpy_expectations() {
  static const Json expected = Json::parse(read_text_file(kTables + "expected.json"));
  return expected;
}

std::string rows_hex(const Source& source, std::string_view name) {
  std::string text;
  for (int64_t i = 0; i < source.size(); ++i) text += hex(source.read(i).find(name)->bytes);
  return text;
}

std::string npy_error(const std::string& name) {
  return error_of([&] { open_arrays({kTables + name}); });
}

}  // namespace

TEST(ArraysTest, ReadsWhatNumpyWrote) {
  for (const std::string name : kDtypes) {
    const MappedFile file(kTables + name + ".npy");
    const io::NpyArray array = io::parse_npy(file.bytes(), name);
    const Json& wanted = numpy_expectations().at(name);
    const std::string dtype = name == "complex128" ? "ComplexDouble" : numpy_name(array.dtype);
    EXPECT_TRUE(dtype == wanted["dtype"] || name == "complex128") << name;
    EXPECT_EQ(Json(array.shape), wanted["shape"]);
    EXPECT_EQ(hex(array.bytes), wanted["bytes"]);
    const SourcePtr source = open_arrays({kTables + name + ".npy"});
    ASSERT_EQ(source->size(), 5);
    EXPECT_EQ(rows_hex(*source, name), wanted["bytes"]);
    EXPECT_EQ(source->read(3).fields[0].sizes, c10::IntArrayRef({3}));
  }
  for (const std::string name : {"scalars", "empty", "wide", "cube", "version2", "version3"}) {
    const MappedFile file(kTables + name + ".npy");
    const io::NpyArray array = io::parse_npy(file.bytes(), name);
    if (name.starts_with("version")) {
      EXPECT_EQ(array.shape, std::vector<int64_t>({3, 2}));
    } else {
      EXPECT_EQ(Json(array.shape), numpy_expectations().at(name)["shape"]);
      EXPECT_EQ(hex(array.bytes), numpy_expectations().at(name)["bytes"]);
    }
  }
  EXPECT_EQ(open_arrays({kTables + "empty.npy"})->size(), 0);
  EXPECT_TRUE(open_arrays({kTables + "scalars.npy"})->read(6).fields[0].sizes.empty());
}

TEST(ArraysTest, WritesTheHeadersOfNumpy) {
  for (const std::string name :
       {"bool", "uint8", "float16", "float32", "int64", "complex64", "scalars", "empty", "wide", "cube"}) {
    const std::string file = read_text_file(kTables + name + ".npy");
    const io::NpyArray array = io::parse_npy(io::as_bytes(file), name);
    EXPECT_EQ(io::make_npy_header(array.dtype, array.shape), file.substr(0, array.offset)) << name;
  }
  EXPECT_EQ(io::make_npy_header(c10::kFloat, {0, 7}).size(),
            io::make_npy_header(c10::kFloat, {1'000'000'000, 7}).size());
  EXPECT_THAT(error_of([] { io::make_npy_header(c10::kBFloat16, {1}); }), HasSubstr("NumPy has no dtype for BFloat16"));
}

TEST(ArraysTest, ViewsPointIntoTheFile) {
  const SourcePtr source = open_arrays({kTables + "float32.npy"});
  const Sample a = source->read(1), b = source->read(2);
  EXPECT_EQ(b.fields[0].bytes.data() - a.fields[0].bytes.data(), 12);
  EXPECT_EQ(a.fields[0].offset, 128U + 12U);
  EXPECT_EQ(a.file, kTables + "float32.npy");
}

TEST(ArraysTest, ReadsArchivesAndTensorsAlike) {
  const SourcePtr stored = open_arrays({kTables + "stored.npz"}), packed = open_arrays({kTables + "packed.npz"}),
                  tensors = open_arrays({kTables + "two.safetensors"});
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(shown(stored->read(i)), shown(packed->read(i)));
    EXPECT_EQ(described(stored->read(i)), described(tensors->read(i)));
  }
  EXPECT_EQ(rows_hex(*stored, "x"), numpy_expectations().at("float32")["bytes"]);
}

TEST(ArraysTest, WritesWhatNumpyReads) {
  const OutputFolder out;
  for (const std::string name : kDtypes) {
    copy_all(*open_arrays({kTables + name + ".npy"}), *arrays_sink(out / (name + ".npy")));
    EXPECT_TRUE(read_text_file(out / (name + ".npy")) == read_text_file(kTables + name + ".npy")) << name;
  }
  copy_all(*open_arrays({kTables + "scalars.npy"}), *arrays_sink(out / "scalars.npy"));
  for (const std::string name : {"two.npz", "two.safetensors"}) {
    const SourcePtr golden = open_arrays({kTables + "stored.npz"});
    copy_all(*golden, *arrays_sink(out / name));
    const SourcePtr ours = open_arrays({out / name});
    for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(described(ours->read(i)), described(golden->read(i)));
  }
  EXPECT_TRUE(read_text_file(out / "two.safetensors") == read_text_file(kTables + "two.safetensors"));
}

TEST(ArraysTest, ChoosesArraysFromSeveralFiles) {
  const SourcePtr source =
      open_arrays({kTables + "stored.npz", kTables + "cube.npy", kTables + "int8.npy"}, {.names = {"int8", "y"}});
  EXPECT_EQ(source->read(0).fields.size(), 2U);
  EXPECT_EQ(source->read(0).fields[0].name, "int8");
  EXPECT_THAT(error_of([] {
                open_arrays({kTables + "stored.npz", kTables + "cube.npy"});
              }),
              HasSubstr("\"cube\" in " + kTables + "cube.npy has 2 rows, but \"x\" in " + kTables +
                        "stored.npz has 5. All arrays of a dataset need the same number of rows"));
  EXPECT_THAT(error_of([] { open_arrays({kTables + "stored.npz"}, {.names = {"z"}}); }),
              HasSubstr("The arrays are: x, y"));
  EXPECT_THAT(error_of([] {
                open_arrays({kTables + "stored.npz", kTables + "two.safetensors"});
              }),
              HasSubstr("two arrays are called \"x\""));
  EXPECT_THAT(npy_error("number.npy"), HasSubstr("is a single number"));
}

TEST(ArraysTest, SaysWhatItDoesNotRead) {
  EXPECT_THAT(npy_error("fortran.npy"), HasSubstr("fortran.npy: the NumPy array is in Fortran order"));
  EXPECT_THAT(npy_error("big.npy"), HasSubstr("big-endian (\">f4\")"));
  EXPECT_THAT(npy_error("objects.npy"), HasSubstr("Python objects, which could run code when they are read"));
  EXPECT_THAT(npy_error("texts.npy"), HasSubstr("has dtype \"<U2\""));
  EXPECT_THAT(npy_error("structure.npy"), HasSubstr("structured dtype"));
  EXPECT_THAT(npy_error("cells.csv"), HasSubstr("expected a .npy, .npz or safetensors file"));
}

TEST(ArraysTest, CutAndFlippedFilesThrow) {
  TemporaryFolder folder;
  for (const std::string name : {"float32.npy", "stored.npz", "packed.npz", "two.safetensors"}) {
    const std::string good = read_text_file(kTables + name);
    for (size_t length = 0; length < good.size(); ++length) {
      put_file(folder / "x", good.substr(0, length));
      EXPECT_NE(error_of([&] { open_arrays({folder / "x"}); }), "") << name << " cut after " << length;
    }
    for (size_t bit = 0; bit < 8 * good.size(); bit += 7) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
      put_file(folder / "x", bad);
      try {
        const SourcePtr source = open_arrays({folder / "x"});
        for (int64_t i = 0; i < std::min<int64_t>(source->size(), 10); ++i) source->read(i);
      } catch (const c10::ValueError&) {
      }
    }
  }
  put_file(folder / "x", read_text_file(kTables + "float32.npy") + "!");
  EXPECT_THAT(error_of([&] { open_arrays({folder / "x"}); }),
              HasSubstr("needs 60 bytes from byte 128, but the file has 61"));
}

TEST(ArraysTest, StoredMembersAreComparedWithTheirChecksum) {
  TemporaryFolder folder;
  std::string bad = read_text_file(kTables + "stored.npz");
  const uint64_t last_row = open_arrays({kTables + "stored.npz"})->read(4).find("x")->offset;
  bad[last_row] = static_cast<char>(bad[last_row] ^ 1);
  put_file(folder / "bad.npz", bad);
  const SourcePtr source = open_arrays({folder / "bad.npz"});
  for (int time = 0; time < 2; ++time)
    EXPECT_THAT(error_of([&] { source->read(0); }), HasSubstr("bad.npz, \"x.npy\": expected CRC-32"));
  EXPECT_NO_THROW(open_arrays({folder / "bad.npz"}, {.names = {"y"}})->read(0));
}

TEST(ArraysTest, HugeClaimsAllocateNothing) {
  const auto header = [](const std::string& shape) {
    std::string text = "{'descr': '<f8', 'fortran_order': False, 'shape': " + shape + ", }";
    text.resize(117, ' ');
    return std::string("\x93NUMPY\1\0\x76\0", 10) + text + "\n";
  };
  for (const char* shape : {"(4611686018427387904, 4)", "(9223372036854775807,)", "(65536, 65536, 65536, 65536)"}) {
    EXPECT_THAT(error_of([&] { io::parse_npy(io::as_bytes(header(shape)), "x"); }), HasSubstr("bytes"));
  }
  EXPECT_THAT(error_of([&] { io::parse_npy(io::as_bytes(header("(99999999999999999999,)")), "x"); }),
              HasSubstr("corrupt"));
  EXPECT_THAT(error_of([&] { io::parse_npy(io::as_bytes(header("(-1,)")), "x"); }), HasSubstr("corrupt"));
}

TEST(ArraysTest, TheSinkRefusesWhatArraysCannotHold) {
  TemporaryFolder folder;
  const std::vector<float> values{1, 2, 3};
  Sample one, other;
  one.fields = {array_field("x", values, c10::kFloat, {3})};
  other.fields = {array_field("x", values, c10::kFloat, {1, 3})};
  const auto sink = arrays_sink(folder / "a.npz");
  sink->write(one);
  EXPECT_THAT(error_of([&] { sink->write(other); }),
              HasSubstr("Float [1, 3], but the samples before it have Float [3]"));
  other.fields = {file_field("x", "text")};
  EXPECT_THAT(error_of([&] { sink->write(other); }), HasSubstr("is an encoded file, not an array"));
  other.fields.clear();
  EXPECT_THAT(error_of([&] { sink->write(other); }), HasSubstr("has 0 fields, but the samples before it have 1"));
  EXPECT_THAT(error_of([&] { arrays_sink(folder / "a.txt"); }), HasSubstr("ends in .npy, .npz or .safetensors"));
  other.fields = {file_field("cls", "seven")};
  EXPECT_THAT(error_of([&] { arrays_sink(folder / "b.npz")->write(other); }), HasSubstr("expected an integer label"));
  const std::vector<int64_t> label{3};
  other.fields = {file_field("cls", "3"), array_field("label", label, c10::kLong)};
  EXPECT_THAT(error_of([&] { arrays_sink(folder / "b.npz")->write(other); }),
              HasSubstr("would have the name \"label\""));
  one.fields.push_back(array_field("y", values, c10::kFloat, {3}));
  EXPECT_THAT(error_of([&] { arrays_sink(folder / "a.npy")->write(one); }),
              HasSubstr("a .npy file contains only one array"));
  EXPECT_FALSE(fs::exists(folder / "a.npz")) << "nothing stays behind without close()";
  EXPECT_EQ(fs::directory_iterator(fs::path(folder / "a.npz").parent_path()), fs::directory_iterator());
}

TEST(ArraysTest, MutatedFiles) {
  std::vector<io::Bytes> seeds;
  for (const char* name : {"float32.npy", "cube.npy", "version2.npy", "structure.npy"}) {
    const std::string text = read_text_file(kTables + name);
    seeds.emplace_back(io::as_bytes(text).begin(), io::as_bytes(text).end());
  }
  fuzz::sample_fuzzing(seeds, fuzz::npy);
}

}  // namespace bellows::data::testing
