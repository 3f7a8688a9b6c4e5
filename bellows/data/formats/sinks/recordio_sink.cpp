#include <c10/util/Exception.h>

#include <cmath>
#include <cstring>

#include "bellows/core/error.h"
#include "bellows/data/formats/example_fields.h"
#include "bellows/data/formats/recordio_source.h"
#include "bellows/data/label.h"
#include "bellows/io/records/recordio.h"
#include "bellows/system/file.h"

namespace bellows::data {

namespace {

float exact_float(int64_t label) {
  const auto value = static_cast<float>(label);
  TORCH_CHECK_VALUE(std::abs(value) < 9.2e18F && static_cast<int64_t>(value) == label,
                    "RecordIO stores labels as float32, which cannot exactly represent ", label, ".");
  return value;
}

class RecordioSink final : public Sink {
 public:
  explicit RecordioSink(const std::string& path) : path_(path), file_(path) {}

  void write(const Sample& sample) override {
    check_whole();
    record_.clear();
    try {
      io::append_recordio(record_, io::as_bytes(record_of(sample)));
    } catch (const c10::ValueError& error) {
      TORCH_CHECK_VALUE(false, "recordio_sink: ", path_, ": ", sample.where(), ": ", user_message(error));
    }
    file_.write(record_);
    index_ += c10::str(count_++, "\t", end_, "\n");
    end_ += record_.size();
  }

  void close() override {
    check_whole();
    file_.commit();
    write_text_file(recordio_index_path(path_), index_);
  }

 private:
  /// Throws if a record was written only in part, for example on a full disk: writing cannot continue after it.
  void check_whole() const {
    TORCH_CHECK(file_.offset() == end_, "recordio_sink: ", path_,
                ": an earlier write failed, so the file was not created. Start again with a new sink.");
  }

  std::string record_of(const Sample& sample) {
    const Field* array = sample.find("label");
    const Field* label = array && array->is_array ? array : sample.find("cls");
    TORCH_CHECK_VALUE(label, "RecordIO needs a label: an array \"label\" or a text \"cls\".");
    const Field* content = nullptr;
    for (const Field& field : sample.fields) {
      if (&field == label) continue;
      TORCH_CHECK_VALUE(!field.is_array && !content,
                        "RecordIO stores one label and one file per sample, so it cannot store \"", field.name, "\"",
                        content ? c10::str(" in addition to \"", content->name, "\"") : "",
                        ". Leave out the field, or choose another format.");
      content = &field;
    }
    io::ImageRecord record;
    record.id = static_cast<uint64_t>(sample.id);
    if (content) record.content = content->bytes;
    read_label(*label, record);
    record.flag = static_cast<uint32_t>(labels_.size());
    record.labels = std::as_bytes(std::span(labels_));
    return io::format_image_record(record);
  }

  /// Fills `labels_` with a list, or the record's one label.
  void read_label(const Field& field, io::ImageRecord& record) {
    labels_.clear();
    if (!field.is_array) {
      record.label = exact_float(parse_label(field, ""));
      return;
    }
    const bool is_float = field.dtype == c10::kFloat;
    TORCH_CHECK_VALUE(field.sizes.empty() || (field.sizes.size() == 1 && field.sizes[0] > 0),
                      "expected a label that is a scalar or a list [n], got one of size ", field.sizes, ".");
    TORCH_CHECK_VALUE(is_float || is_widened(field.dtype), "expected a label of integers or float32, got ",
                      c10::toString(field.dtype), ".");
    if (is_float) {
      labels_.resize(field.bytes.size() / sizeof(float));
      std::memcpy(labels_.data(), field.bytes.data(), field.bytes.size());
    } else {
      for (const int64_t value : widen_integers(field)) labels_.push_back(exact_float(value));
    }
    if (!field.sizes.empty()) return;
    record.label = labels_.at(0);
    labels_.clear();
  }

  std::string path_;
  AtomicFile file_;
  std::string record_, index_;
  std::vector<float> labels_;
  int64_t count_ = 0;
  uint64_t end_ = 0;  // end of the last complete record
};

}  // namespace

std::unique_ptr<Sink> recordio_sink(const std::string& path) {
  return std::make_unique<RecordioSink>(path);
}

}  // namespace bellows::data
