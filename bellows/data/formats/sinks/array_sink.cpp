#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "bellows/core/error.h"
#include "bellows/core/text.h"
#include "bellows/data/formats/array_source.h"
#include "bellows/data/label.h"
#include "bellows/io/archives/zip.h"
#include "bellows/io/tensors/npy.h"
#include "bellows/io/tensors/safetensors.h"
#include "bellows/system/file.h"
#include "bellows/system/write_state.h"

namespace bellows::data {

namespace {

/// An unlinked temporary file that buffers bytes and disappears with the process.
class Spool {
 public:
  explicit Spool(const std::string& beside) : beside_(beside) {
    std::string pattern = beside + ".tmp-XXXXXX";
    const int fd = ::mkstemp(pattern.data());
    TORCH_CHECK(fd >= 0, "arrays_sink: cannot write next to ", beside, ": ", errno_message(errno),
                ". The folder must exist and be writable.");
    ::unlink(pattern.c_str());
    file_.reset(::fdopen(fd, "w+b"));
    TORCH_CHECK(file_, "arrays_sink: out of memory.");
  }
  ~Spool() {
    if (mapped_) ::munmap(mapped_, size_);
  }
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  void write(io::ByteSpan bytes) {
    const size_t written = bytes.empty() ? 0 : std::fwrite(bytes.data(), 1, bytes.size(), file_.get());
    check(written == bytes.size());
    size_ += written;
  }
  /// Overwrites the file's first bytes with `bytes`.
  void write_start(io::ByteSpan bytes) {
    check(std::fseek(file_.get(), 0, SEEK_SET) == 0);
    check(std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size());
  }
  std::span<std::byte> map() {
    check(std::fflush(file_.get()) == 0);
    if (size_ == 0) return {};
    void* at = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, ::fileno(file_.get()), 0);
    check(at != MAP_FAILED);
    mapped_ = at;
    return {static_cast<std::byte*>(at), size_};
  }

 private:
  void check(bool good) const {
    TORCH_CHECK(good, "arrays_sink: cannot write next to ", beside_, " at byte ", size_, ": ", errno_message(errno),
                ".");
  }

  std::string beside_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{nullptr, std::fclose};
  size_t size_ = 0;
  void* mapped_ = nullptr;
};

class ArraysSink final : public Sink {
 public:
  explicit ArraysSink(const std::string& path)
      : path_(path), suffix_(lower_case(std::filesystem::path(path).extension().string())) {
    TORCH_CHECK_VALUE(suffix_ == ".npy" || suffix_ == ".npz" || suffix_ == ".safetensors",
                      "arrays_sink: expected a name that ends in .npy, .npz or .safetensors, got ", path, ".");
  }

  void write(const Sample& sample) override {
    fields_.clear();
    fields_.reserve(sample.fields.size());
    for (const Field& field : sample.fields) fields_.push_back(as_array(field, sample));
    if (columns_.empty()) learn(sample);
    TORCH_CHECK_VALUE(sample.fields.size() == columns_.size(), "arrays_sink: ", sample.where(), " has ",
                      sample.fields.size(), " fields, but the samples before it have ", columns_.size(), ".");
    std::vector<io::ByteSpan> values;
    values.reserve(columns_.size());
    for (const auto& column : columns_) values.push_back(value_of(*column, sample));
    state_.run("arrays_sink", [&] {
      for (size_t i = 0; i < values.size(); ++i) columns_[i]->spool.write(values[i]);
    });
    ++rows_;
  }

  void close() override {
    TORCH_CHECK_VALUE(!columns_.empty(), "arrays_sink: no sample was written to ", path_,
                      ", so the arrays of the file are unknown.");
    for (const auto& column : columns_) column->shape[0] = rows_;
    state_.run("arrays_sink", [&] { write_file(); });
  }

 private:
  void write_file() {
    if (suffix_ == ".safetensors") return close_safetensors();
    for (const auto& column : columns_) column->spool.write_start(io::as_bytes(header(*column)));
    if (suffix_ == ".npz") return close_npz();
    AtomicFile file(path_);
    file.write(columns_.front()->spool.map());
    file.commit();
  }

  struct Column {
    Column(const Field& field, const std::string& beside)
        : name(field.name), dtype(field.dtype), shape{0}, spool(beside) {
      shape.insert(shape.end(), field.sizes.begin(), field.sizes.end());
    }
    std::string name;
    c10::ScalarType dtype;
    std::vector<int64_t> shape;
    Spool spool;
  };

  static std::string header(const Column& column) { return io::make_npy_header(column.dtype, column.shape); }

  void learn(const Sample& sample) {
    TORCH_CHECK_VALUE(!sample.fields.empty(), "arrays_sink: ", sample.where(), " has no fields.");
    TORCH_CHECK_VALUE(suffix_ != ".npy" || sample.fields.size() == 1, "arrays_sink: ", sample.where(), " has ",
                      sample.fields.size(),
                      " fields, but a .npy file contains only one array. Write .npz or .safetensors.");
    std::vector<std::unique_ptr<Column>> columns;
    columns.reserve(fields_.size());
    for (const Field& field : fields_) {
      TORCH_CHECK_VALUE(&field == find(field.name), "arrays_sink: ", sample.where(),
                        ": two arrays would have the name \"", field.name, "\".");
      columns.push_back(std::make_unique<Column>(field, path_));
      // This header already has the length of the final one, because the length does not depend on the number of rows.
      if (suffix_ != ".safetensors") columns.back()->spool.write(io::as_bytes(header(*columns.back())));
    }
    columns_ = std::move(columns);
  }

  /// Converts a label as text to a number.
  Field as_array(const Field& field, const Sample& sample) {
    if (field.is_array) return field;
    TORCH_CHECK_VALUE(field.name == "cls", "arrays_sink: ", sample.where(&field),
                      " is an encoded file, not an array. Decode it, or choose another format.");
    try {
      label_ = parse_label(field, "");
    } catch (const c10::ValueError& error) {
      TORCH_CHECK_VALUE(false, "arrays_sink: ", sample.where(&field), ": ", user_message(error));
    }
    return {.name = "label", .bytes = std::as_bytes(std::span(&label_, 1)), .is_array = true, .dtype = c10::kLong};
  }

  const Field* find(std::string_view name) const {
    const auto found = std::ranges::find(fields_, name, &Field::name);
    return found == fields_.end() ? nullptr : &*found;
  }

  io::ByteSpan value_of(const Column& column, const Sample& sample) const {
    const Field* field = find(column.name);
    TORCH_CHECK_VALUE(field, "arrays_sink: ", sample.where(), " has no \"", column.name,
                      "\", which other samples have.");
    const auto sizes = c10::IntArrayRef(column.shape).slice(1);
    TORCH_CHECK_VALUE(field->dtype == column.dtype && field->sizes == sizes, "arrays_sink: ", sample.where(), ": \"",
                      field->name, "\" is ", c10::toString(field->dtype), " ", field->sizes,
                      ", but the samples before it have ", c10::toString(column.dtype), " ", sizes,
                      ". All rows of an array have the same type and size.");
    return field->bytes;
  }

  void close_npz() {
    io::ZipWriter zip(path_);
    for (const auto& column : columns_) zip.add(column->name + ".npy", column->spool.map());
    zip.close();
  }

  void close_safetensors() {
    NamedTensors tensors;
    for (const auto& column : columns_) {
      const auto options = at::TensorOptions().dtype(column->dtype);
      tensors.emplace_back(column->name, at::from_blob(column->spool.map().data(), column->shape, options));
    }
    io::save_safetensors(path_, tensors);
  }

  WriteState state_;
  std::string path_, suffix_;
  std::vector<std::unique_ptr<Column>> columns_;
  int64_t rows_ = 0;
  std::vector<Field> fields_;  // of the current sample
  int64_t label_ = 0;          // the memory of the label field
};

}  // namespace

std::unique_ptr<Sink> arrays_sink(const std::string& path) {
  return std::make_unique<ArraysSink>(path);
}

}  // namespace bellows::data
