#include "bellows/io/records/event_file.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/mul.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "bellows/core/error.h"
#include "bellows/core/log.h"
#include "bellows/io/bytes.h"
#include "bellows/io/images/image.h"
#include "bellows/io/records/event.pb.h"
#include "bellows/io/records/tfrecord.h"
#include "bellows/system/file.h"

namespace bellows::io {

namespace {

constexpr std::string_view event_file_prefix = "events.out.tfevents.";
constexpr size_t flush_bytes = 1 << 20;

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Replaces invalid UTF-8 by U+FFFD: readers reject a whole file because of one bad byte.
std::string utf8(std::string_view text) {
  using Json = nlohmann::json;
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

/// The latest time in the names of the folder's event files; -1 if there are none. Readers use the order of the names.
int64_t latest_file_time(const std::string& folder) {
  int64_t latest = -1;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!name.starts_with(event_file_prefix)) continue;
    int64_t time = 0;
    std::from_chars(name.data() + event_file_prefix.size(), name.data() + name.size(), time);
    latest = std::max(latest, time);
  }
  return latest;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data() : "localhost";
}

std::string event_file_name(int64_t time) {
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "%010lld", static_cast<long long>(time));
  return c10::str(event_file_prefix, digits.data(), ".", host_name(), ".", ::getpid(), ".0");
}

proto::Event summary_event(std::string_view tag, int64_t step) {
  proto::Event event;
  event.set_step(step);
  event.mutable_summary()->add_value()->set_tag(utf8(tag));
  return event;
}

proto::Summary_Value& value_of(proto::Event& event) {
  return *event.mutable_summary()->mutable_value(0);
}

/// The image as uint8 [H, W, C], contiguous.
at::Tensor pixels_of(const at::Tensor& image) {
  const int64_t dims = image.defined() ? image.dim() : 0;
  const int64_t channels = dims == 3 ? image.size(0) : 1;
  const bool fits = (dims == 2 || dims == 3) && (channels == 1 || channels == 3 || channels == 4) &&
                    (image.scalar_type() == c10::kByte || image.is_floating_point());
  TORCH_CHECK_VALUE(fits, "image: expected uint8 or floating point, [H, W] or [C, H, W] with 1, 3 or 4 channels, got ",
                    dims == 0 ? "no image." : c10::str(image.dtype(), " ", image.sizes(), "."));
  at::Tensor pixels = image.detach().to(c10::kCPU);
  if (pixels.scalar_type() != c10::kByte)
    pixels = at::clamp(at::mul(pixels.to(c10::kFloat), 255.0), 0, 255).to(c10::kByte);
  return (dims == 2 ? pixels.unsqueeze(2) : pixels.permute({1, 2, 0})).contiguous();
}

void add_parameter(const std::string& name, const HyperParameter& value, proto::HyperParameters& experiment,
                   proto::HyperParameters& start) {
  proto::HyperParameters_Parameter& info = *experiment.mutable_experiment()->add_hparam_infos();
  proto::HyperParameters_Entry& entry = *start.mutable_session_start_info()->add_hparams();
  entry.set_key(name);
  info.set_name(name);
  if (const double* number = std::get_if<double>(&value)) {
    info.set_type(proto::HyperParameters_Type_FLOAT64);
    entry.mutable_value()->set_number_value(*number);
  } else if (const bool* on = std::get_if<bool>(&value)) {
    info.set_type(proto::HyperParameters_Type_BOOL);
    entry.mutable_value()->set_bool_value(*on);
  } else {
    info.set_type(proto::HyperParameters_Type_TEXT);
    entry.mutable_value()->set_string_value(utf8(std::get<std::string>(value)));
  }
}

/// The limits of TensorBoard's buckets: …, -1.1e-12, -1e-12, 0, 1e-12, 1.1e-12, … up to 1e20.
const std::vector<double>& bucket_ends() {
  static const std::vector<double> ends = [] {
    std::vector<double> result{0};
    for (double end = 1e-12; end < 1e20; end *= 1.1) result.push_back(end);
    const std::vector<double> positive(result.begin() + 1, result.end());
    for (const double end : positive) result.insert(result.begin(), -end);
    return result;
  }();
  return ends;
}

/// The bucket [ends[i], ends[i + 1]) of a value; the last one includes its upper limit. Negative: none.
int64_t bucket_of(double value, const std::vector<double>& ends) {
  if (value == ends.back()) return static_cast<int64_t>(ends.size()) - 2;
  if (value < ends.front() || value > ends.back()) return -1;
  return std::upper_bound(ends.begin(), ends.end(), value) - ends.begin() - 1;
}

/// Writes the buckets, with their upper limits, from the one before the first non-empty bucket to the last non-empty
/// one.
void set_buckets(const std::vector<double>& counts, const std::vector<double>& ends, proto::Histogram& histogram) {
  const auto holds = [](double count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), holds) - counts.begin();
  const auto last = counts.rend() - std::find_if(counts.rbegin(), counts.rend(), holds) - 1;
  for (auto i = first - 1; i <= last; ++i) {
    histogram.add_bucket(i < 0 ? 0 : counts[static_cast<size_t>(i)]);
    histogram.add_bucket_limit(ends[static_cast<size_t>(i + 1)]);
  }
}

/// Fills `histogram`; see EventWriter::histogram(). Returns false if there is no finite value.
bool fill_histogram(const at::Tensor& values, proto::Histogram& histogram) {
  TORCH_CHECK_VALUE(values.defined() && !values.is_complex(), "histogram: expected a tensor of real numbers, got ",
                    values.defined() ? "a complex one." : "an undefined one.");
  const at::Tensor numbers = values.detach().to(c10::kCPU, c10::kDouble).contiguous();
  const std::vector<double>& ends = bucket_ends();
  std::vector<double> counts(ends.size() - 1);
  double minimum = std::numeric_limits<double>::infinity(), maximum = -minimum, sum = 0, squares = 0, count = 0;
  const double* data = numbers.const_data_ptr<double>();
  for (const double value : c10::ArrayRef<double>(data, static_cast<size_t>(numbers.numel()))) {
    if (!std::isfinite(value)) continue;
    minimum = std::min(minimum, value);
    maximum = std::max(maximum, value);
    sum += value;
    squares += value * value;
    ++count;
    if (const int64_t bucket = bucket_of(value, ends); bucket >= 0) ++counts[static_cast<size_t>(bucket)];
  }
  if (count == 0) return false;
  histogram.set_min(minimum);
  histogram.set_max(maximum);
  histogram.set_num(count);
  histogram.set_sum(sum);
  histogram.set_sum_squares(squares);
  if (std::any_of(counts.begin(), counts.end(), [](double c) { return c > 0; })) set_buckets(counts, ends, histogram);
  return true;
}

}  // namespace

EventWriter::EventWriter(const std::string& folder, EventWriterOptions options)
    : flush_seconds_(options.flush_seconds),
      wall_start_(seconds_since_1970()),
      start_(std::chrono::steady_clock::now()),
      flushed_(start_) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  TORCH_CHECK(!error, "EventWriter: cannot create the folder ", folder, ": ", errno_message(error.value()), ".");
  int64_t time = std::max(static_cast<int64_t>(wall_start_), latest_file_time(folder) + 1);
  for (; fd_ < 0; ++time) {
    path_ = std::filesystem::path(folder) / event_file_name(time);
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    TORCH_CHECK(fd_ >= 0 || errno == EEXIST, "EventWriter: cannot write ", path_, ": ", errno_message(errno), ".");
  }
  proto::Event version;
  version.set_file_version("brain.Event:2");
  append(version);
  if (options.purge_step >= 0) {
    proto::Event restart;
    restart.set_step(options.purge_step);
    restart.mutable_session_log()->set_status(proto::SessionLog_Status_START);
    append(restart);
  }
}

EventWriter::~EventWriter() {
  try {
    flush();
  } catch (const std::exception& error) {
    log_warn(user_message(error));
  }
  ::close(fd_);
}

double EventWriter::wall_time() const {
  return wall_start_ + std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void EventWriter::append(const proto::Event& event) {
  proto::Event timed = event;
  timed.set_wall_time(wall_time());
  append_tfrecord(buffer_, timed.SerializeAsString());
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - flushed_;
  if (buffer_.size() >= flush_bytes || waited.count() >= flush_seconds_) flush();
}

void EventWriter::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t written = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int reason = errno;
      buffer_.erase(0, done);
      TORCH_CHECK(false, "EventWriter: cannot write ", path_, ": ", errno_message(reason), ".");
    }
    done += static_cast<size_t>(written);
  }
  buffer_.clear();
  flushed_ = std::chrono::steady_clock::now();
}

void EventWriter::scalar(std::string_view tag, double value, int64_t step) {
  proto::Event event = summary_event(tag, step);
  value_of(event).set_simple_value(static_cast<float>(value));
  append(event);
}

void EventWriter::histogram(std::string_view tag, const at::Tensor& values, int64_t step) {
  proto::Event event = summary_event(tag, step);
  if (fill_histogram(values, *value_of(event).mutable_histo())) append(event);
}

void EventWriter::image(std::string_view tag, const at::Tensor& image, int64_t step) {
  const at::Tensor pixels = pixels_of(image);
  const Bytes file = encode_png(pixels);
  proto::Event event = summary_event(tag, step);
  proto::Summary_Image& message = *value_of(event).mutable_image();
  message.set_height(static_cast<int32_t>(pixels.size(0)));
  message.set_width(static_cast<int32_t>(pixels.size(1)));
  message.set_colorspace(static_cast<int32_t>(pixels.size(2)));
  message.set_encoded_image_string(std::string(as_text(file)));
  append(event);
}

void EventWriter::text(std::string_view tag, std::string_view text, int64_t step) {
  proto::Event event = summary_event(std::string(tag) + "/text_summary", step);  // the name that the plugin expects
  proto::Summary_Value& value = value_of(event);
  value.mutable_metadata()->mutable_plugin_data()->set_plugin_name("text");
  value.mutable_tensor()->set_dtype(proto::Tensor_Type_STRING);
  value.mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(1);
  value.mutable_tensor()->add_string_val(utf8(text));
  append(event);
}

void EventWriter::append_hyperparameters(const char* tag, const std::string& message) {
  proto::Event event = summary_event(tag, 0);
  proto::Summary_Value& value = value_of(event);
  value.mutable_metadata()->mutable_plugin_data()->set_plugin_name("hparams");
  value.mutable_metadata()->mutable_plugin_data()->set_content(message);
  // The plugin's data is in the metadata, but readers require a tensor: an empty one.
  value.mutable_tensor()->set_dtype(proto::Tensor_Type_FLOAT);
  value.mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(0);
  append(event);
}

void EventWriter::hyperparameters(const std::vector<std::pair<std::string, HyperParameter>>& values,
                                  const std::vector<std::string>& metrics) {
  proto::HyperParameters experiment, start;
  experiment.mutable_experiment()->set_time_created_secs(wall_start_);
  start.mutable_session_start_info()->set_start_time_secs(wall_start_);
  for (const auto& [name, value] : values) add_parameter(utf8(name), value, experiment, start);
  for (const std::string& tag : metrics) {
    experiment.mutable_experiment()->add_metric_infos()->mutable_name()->set_tag(utf8(tag));
  }
  append_hyperparameters("_hparams_/experiment", experiment.SerializeAsString());
  append_hyperparameters("_hparams_/session_start_info", start.SerializeAsString());
}

void EventWriter::end_session(bool success) {
  proto::HyperParameters end;
  end.mutable_session_end_info()->set_end_time_secs(wall_time());
  end.mutable_session_end_info()->set_status(success ? proto::HyperParameters_Status_SUCCESS
                                                     : proto::HyperParameters_Status_FAILURE);
  append_hyperparameters("_hparams_/session_end_info", end.SerializeAsString());
}

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

/// The number in the tensor that newer writers use instead of a scalar's field.
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
        "read_events: ", where, ": the record at byte ", offset, " is not an event.");
    TORCH_CHECK_VALUE(
        offset > 0 || message.file_version().starts_with("brain.Event:"), "read_events: ", where,
        " is a TFRecord file, but not an event file, because it does not begin with a version \"brain.Event:…\".");
    read_event(message, events);
  }
  return events;
}

std::vector<Event> read_events(const std::string& path) {
  const MappedFile file(path);
  return read_events(as_text(file.bytes()), path);
}

}  // namespace bellows::io
