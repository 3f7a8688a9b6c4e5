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
  /// The first step that this run repeats. TensorBoard then hides the events of this step and later steps in earlier
  /// files of the folder. A negative value hides nothing.
  int64_t purge_step = -1;
  /// Pending events are flushed if an event is added at least this long after the last flush, or if their size reaches
  /// 1 MiB.
  double flush_seconds = 5;
};

/// One value of a recipe, for TensorBoard's HPARAMS tab.
using HyperParameter = std::variant<double, bool, std::string>;

/// Writes a TensorBoard event file. To view it, run `tensorboard --logdir FOLDER`.
///
/// Each writer creates its own file. Its name sorts after the names of existing files, even if the clock was set back.
/// Flushed events survive kill -9. Every reader skips a truncated record at the end of the file.
/// Numerics: scalars are stored as float32. Times start at the wall-clock time and increase monotonically
/// Threads:  use it on one thread at a time
/// Ref:      torch.utils.tensorboard.SummaryWriter
class EventWriter {
 public:
  /// Creates the file, and also the folder if it is missing.
  /// Throws: c10::Error if the folder or the file cannot be created
  explicit EventWriter(const std::string& folder, EventWriterOptions options = {});
  /// Flushes pending events. Write errors are logged.
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  // Throws: all functions below throw c10::Error if the file cannot be written (the message states the path and the
  //         system's reason)

  void scalar(std::string_view tag, double value, int64_t step);
  /// Records the distribution of the tensor's values in TensorBoard's buckets (each 10 % wider than the previous one).
  /// NaN and infinite values are ignored. If there are no other values, nothing is written.
  /// Params: values – tensor of any real dtype, shape and device
  /// Cost:   one copy to the CPU in float64, and one pass
  void histogram(std::string_view tag, const at::Tensor& values, int64_t step);
  /// Params: image – [H, W] or [C, H, W] with 1, 3 or 4 channels; uint8, or floating point in [0, 1] (other values are
  ///         clamped)
  /// Throws: c10::ValueError if the shape or dtype of the image is not as above
  void image(std::string_view tag, const at::Tensor& image, int64_t step);
  /// Params: text – Markdown
  void text(std::string_view tag, std::string_view text, int64_t step);
  /// Writes the row of this run in the HPARAMS tab. Call this function only once per folder, because TensorBoard uses
  /// the first row.
  /// Params: values – hyperparameters by name
  ///         metrics – tags of scalars. The row shows the last value of each tag
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

/// One event read from a file. Each value of a summary becomes one Event.
struct Event {
  enum class Kind { version, session_start, scalar, histogram, image, text, hyperparameters, other };

  Kind kind = Kind::other;
  double wall_time = 0;  ///< seconds since 1970
  int64_t step = 0;
  std::string tag;
  double value = 0;     ///< only for scalars
  std::string content;  ///< the version, the text, the image file, or the plugin's message
  double minimum = 0, maximum = 0, count = 0, sum = 0, sum_squares = 0;  ///< only for histograms
  std::vector<double> bucket_limits;                                     ///< upper bounds of the buckets
  std::vector<double> buckets;                                           ///< number of values in each bucket
  std::vector<std::pair<std::string, HyperParameter>> parameters;        ///< by name; only at the start of a session
};

/// Reads an event file. If the last record is truncated, for example after kill -9, it is skipped.
/// Throws: c10::ValueError if the file is missing, is not an event file, or has a wrong checksum (the message states
///         the path and the byte offset)
std::vector<Event> read_events(const std::string& path);
/// Like read_events(path), but reads from memory.
/// Params: where – name of the bytes for error messages
std::vector<Event> read_events(std::string_view bytes, const std::string& where);

}  // namespace bellows::io
