#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "bellows/io/bytes.h"
#include "bellows/io/records/event.pb.h"
#include "bellows/io/records/event_file.h"
#include "bellows/io/records/tfrecord.h"
#include "bellows/system/file.h"

namespace bellows::io {

namespace {

void read_histogram(const proto::Histogram& message, Event& event) {
  event.kind = Event::Kind::histogram;
  event.minimum = message.min();
  event.maximum = message.max();
  event.count = message.num();
  event.sum = message.sum();
  event.sum_squares = message.sum_squares();
  event.bucket_limits.assign(message.bucket_limit().begin(), message.bucket_limit().end());
  event.buckets.assign(message.bucket().begin(), message.bucket().end());
}

/// The one number of a tensor that newer writers put in place of a scalar's field.
bool scalar_of(const proto::Tensor& tensor, double& value) {
  const std::string& bytes = tensor.tensor_content();
  float narrow = 0;
  if (tensor.float_val_size() == 1) {
    value = tensor.float_val(0);
  } else if (tensor.double_val_size() == 1) {
    value = tensor.double_val(0);
  } else if (tensor.dtype() == proto::Tensor_Type_FLOAT && bytes.size() == sizeof(narrow)) {
    std::memcpy(&narrow, bytes.data(), sizeof(narrow));
    value = narrow;
  } else if (tensor.dtype() == proto::Tensor_Type_DOUBLE && bytes.size() == sizeof(value)) {
    std::memcpy(&value, bytes.data(), sizeof(value));
  } else {
    return false;
  }
  return true;
}

void read_hyperparameters(const std::string& content, Event& event) {
  event.kind = Event::Kind::hyperparameters;
  event.content = content;
  proto::HyperParameters message;
  if (!message.ParseFromString(content)) return;
  for (const proto::HyperParameters_Entry& entry : message.session_start_info().hparams()) {
    const proto::HyperParameters_Value& value = entry.value();
    if (value.has_number_value()) event.parameters.emplace_back(entry.key(), value.number_value());
    if (value.has_bool_value()) event.parameters.emplace_back(entry.key(), value.bool_value());
    if (value.has_string_value()) event.parameters.emplace_back(entry.key(), value.string_value());
  }
  std::sort(event.parameters.begin(), event.parameters.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
}

void read_value(const proto::Summary_Value& value, Event& event) {
  const std::string& plugin = value.metadata().plugin_data().plugin_name();
  event.tag = value.tag();
  if (value.has_simple_value()) {
    event.kind = Event::Kind::scalar;
    event.value = value.simple_value();
  } else if (value.has_histo()) {
    read_histogram(value.histo(), event);
  } else if (value.has_image()) {
    event.kind = Event::Kind::image;
    event.content = value.image().encoded_image_string();
  } else if (plugin == "hparams") {
    read_hyperparameters(value.metadata().plugin_data().content(), event);
  } else if (plugin == "text" && value.tensor().string_val_size() == 1) {
    event.kind = Event::Kind::text;
    event.content = value.tensor().string_val(0);
  } else if (plugin == "scalars" && scalar_of(value.tensor(), event.value)) {
    event.kind = Event::Kind::scalar;
  }
}

void read_event(const proto::Event& message, std::vector<Event>& events) {
  Event event;
  event.wall_time = message.wall_time();
  event.step = message.step();
  for (const proto::Summary_Value& value : message.summary().value()) {
    read_value(value, events.emplace_back(event));
  }
  if (message.has_summary()) return;
  if (message.has_file_version()) {
    event.kind = Event::Kind::version;
    event.content = message.file_version();
  } else if (message.session_log().status() == proto::SessionLog_Status_START) {
    event.kind = Event::Kind::session_start;
  }
  events.push_back(std::move(event));
}

}  // namespace

std::vector<Event> read_events(std::string_view bytes, const std::string& where) {
  std::vector<Event> events;
  TfrecordReader records(bytes, where);
  while (!records.torn()) {
    const uint64_t offset = records.offset();
    const auto record = records.next();
    if (!record) break;
    proto::Event message;
    TORCH_CHECK_VALUE(
        record->size() <= INT32_MAX && message.ParseFromArray(record->data(), static_cast<int>(record->size())),
        "read_events: ", where, ": the record at byte ", offset, " is no event.");
    TORCH_CHECK_VALUE(offset > 0 || message.file_version().starts_with("brain.Event:"), "read_events: ", where,
                      " is a TFRecord file, but no event file: it does not begin with a version \"brain.Event:…\".");
    read_event(message, events);
  }
  return events;
}

std::vector<Event> read_events(const std::string& path) {
  const MappedFile file(path);
  return read_events(as_text(file.bytes()), path);
}

}  // namespace bellows::io
