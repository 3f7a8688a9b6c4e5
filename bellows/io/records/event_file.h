#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace bellows::io::proto {
class Event;
}

namespace bellows::io {

struct EventWriterOptions {
  /// Hides the events of this step and later steps in earlier files of the folder, because that part of the run is
  /// repeated. Negative: hides nothing.
  int64_t purge_step = -1;
  /// Events are flushed when an event is added at least this long after the last flush, or when 1 MiB is pending.
  double flush_seconds = 5;
};

/// One value of a recipe, for TensorBoard's HPARAMS tab.
using HyperParameter = std::variant<double, bool, std::string>;

/// Writes a TensorBoard event file: `tensorboard --logdir FOLDER`.
///
/// Each writer creates its own file. Its name sorts after the existing ones even if the clock was set back. Flushed
/// events survive kill -9; every reader skips a truncated record at the end.
/// Numerics: scalars are stored as float32. Times start at the wall clock's time and increase monotonically
/// Threads:  one owner
/// Ref:      torch.utils.tensorboard.SummaryWriter
class EventWriter {
 public:
  /// Creates the folder if it is missing.
  /// Throws: c10::Error if the folder or the file cannot be created
  explicit EventWriter(const std::string& folder, EventWriterOptions options = {});
  /// Flushes; write errors are logged.
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  // Throws: each throws c10::Error if the file cannot be written; the message names the path and the system's reason

  void scalar(std::string_view tag, double value, int64_t step);
  /// Records the distribution of the tensor's values in TensorBoard's buckets (each 10 % wider than the previous one).
  /// NaN and infinite values are ignored; if there are no other values, nothing is written.
  /// Params: values – any real dtype, shape and device
  /// Cost:   a copy as float64 on the CPU, one pass
  void histogram(std::string_view tag, const at::Tensor& values, int64_t step);
  /// Params: image – [H, W] or [C, H, W] with 1, 3 or 4 channels; uint8, or floating point in [0, 1] (other values are
  ///         clamped)
  /// Throws: c10::ValueError if the shape or the dtype differs
  void image(std::string_view tag, const at::Tensor& image, int64_t step);
  /// Params: text – Markdown
  void text(std::string_view tag, std::string_view text, int64_t step);
  /// Writes this run's row in the HPARAMS tab. Call it once per folder: TensorBoard keeps the first row.
  /// Params: values – by name
  ///         metrics – tags of scalars; the row shows the last value of each
  void hyperparameters(const std::vector<std::pair<std::string, HyperParameter>>& values,
                       const std::vector<std::string>& metrics);
  /// Ends the session that hyperparameters() started.
  void end_session(bool success = true);

  /// Writes all pending events to the file.
  void flush();
  const std::string& path() const { return path_; }

 private:
  void append(const proto::Event& event);
  void append_hyperparameters(const char* tag, const std::string& message);
  double wall_time() const;

  std::string path_, buffer_;
  int fd_ = -1;
  double flush_seconds_;
  double wall_start_;
  std::chrono::steady_clock::time_point start_, flushed_;
};

/// One event read from a file. Each value of a summary becomes one event.
struct Event {
  enum class Kind { version, session_start, scalar, histogram, image, text, hyperparameters, other };

  Kind kind = Kind::other;
  double wall_time = 0;  ///< seconds since 1970
  int64_t step = 0;
  std::string tag;
  double value = 0;     ///< of a scalar
  std::string content;  ///< the version, the text, the image's file, or the plugin's message
  double minimum = 0, maximum = 0, count = 0, sum = 0, sum_squares = 0;  ///< of a histogram
  std::vector<double> bucket_limits;                                     ///< upper bounds
  std::vector<double> buckets;                                           ///< number of values
  std::vector<std::pair<std::string, HyperParameter>> parameters;        ///< at the start of a session, by name
};

/// Reads an event file. A truncated last record, as kill -9 leaves it, is skipped.
/// Throws: c10::ValueError if the file is missing, is not an event file, or has a wrong checksum; the message names the
///         path and the byte offset
std::vector<Event> read_events(const std::string& path);
/// Like read_events(), from memory.
/// Params: where – names the bytes in errors
std::vector<Event> read_events(std::string_view bytes, const std::string& where);

}  // namespace bellows::io
