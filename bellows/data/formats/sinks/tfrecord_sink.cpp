#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "bellows/core/error.h"
#include "bellows/data/formats/example_fields.h"
#include "bellows/data/formats/tfrecord_source.h"
#include "bellows/io/records/example.h"
#include "bellows/io/records/tfrecord.h"
#include "bellows/system/file.h"

namespace bellows::data {

namespace {

class TfrecordSink final : public Sink {
 public:
  TfrecordSink(const std::string& path, TfrecordSinkOptions options)
      : path_(path), options_(std::move(options)), file_(path) {}

  void write(const Sample& sample) override {
    check_whole();
    const Field* current = nullptr;
    record_.clear();
    try {
      notes_.clear();
      if (!sample.key.empty()) add_bytes(example_key_feature, io::as_bytes(sample.key));
      for (const Field& field : sample.fields) {
        current = &field;
        add(field);
      }
      add_notes();
      current = nullptr;
      io::append_tfrecord(record_, example_.take());
    } catch (const c10::ValueError& error) {
      example_ = {};
      TORCH_CHECK_VALUE(false, "tfrecord_sink: ", path_, ": ", sample.where(current), ": ", user_message(error));
    }
    file_.write(record_);
    records_.push_back({end_, record_.size()});
    end_ += record_.size();
  }

  void close() override {
    check_whole();
    file_.commit();
    write_text_file(tfrecord_index_path(path_), io::format_tfrecord_index(records_));
  }

 private:
  /// Throws if a record was written only in part, for example on a full disk: writing cannot continue after it.
  void check_whole() const {
    TORCH_CHECK(file_.offset() == end_, "tfrecord_sink: ", path_,
                ": an earlier write failed, so the file was not created. Start again with a new sink.");
  }

  std::string_view feature_name(std::string_view field) const {
    for (const auto& [from, to] : options_.features) {
      if (from == field) return to;
    }
    return field;
  }

  void add_bytes(std::string_view name, io::ByteSpan bytes) { example_.add_bytes(name, std::span(&bytes, 1)); }

  void add(const Field& field) {
    const std::string_view name = feature_name(field.name);
    if (!field.is_array) return add_bytes(name, field.bytes);
    if (auto note = format_example_array(field, name)) notes_.push_back(std::move(*note));
    const ExampleStore store = example_store(field.dtype);
    if (store == ExampleStore::bytes) {
      add_bytes(name, field.bytes);
    } else if (store == ExampleStore::int64s) {
      example_.add_int64s(name, widen_integers(field));
    } else {
      std::vector<float> values(field.bytes.size() / sizeof(float));
      if (!values.empty()) std::memcpy(values.data(), field.bytes.data(), field.bytes.size());
      example_.add_floats(name, values);
    }
  }

  void add_notes() {
    if (notes_.empty()) return;
    std::ranges::sort(notes_);
    std::vector<io::ByteSpan> notes;
    for (const std::string& note : notes_) notes.push_back(io::as_bytes(note));
    example_.add_bytes(example_arrays_feature, notes);
  }

  std::string path_;
  TfrecordSinkOptions options_;
  AtomicFile file_;
  io::ExampleWriter example_;
  std::vector<std::string> notes_;
  std::string record_;
  std::vector<io::TfrecordSpan> records_;
  uint64_t end_ = 0;  // end of the last complete record
};

}  // namespace

std::unique_ptr<Sink> tfrecord_sink(const std::string& path, const TfrecordSinkOptions& options) {
  return std::make_unique<TfrecordSink>(path, options);
}

}  // namespace bellows::data
