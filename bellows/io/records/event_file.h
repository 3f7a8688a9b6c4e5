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
  /// Events of this step and later ones that earlier files of the folder hold are not shown any more: they belong to
  /// a part of the run that is done again. Negative: all stay.
  int64_t purge_step = -1;
  /// At most this long an event waits in memory before the next one takes it along to the file.
  double flush_seconds = 5;
};

/// One value of a recipe, as TensorBoard's HPARAMS tab knows them.
using HyperParameter = std::variant<double, bool, std::string>;

/// Writes a TensorBoard event file: `tensorboard --logdir FOLDER`.
///
/// Each writer begins a file of its own, whose name sorts behind those that are there even if the clock went back.
/// What was flushed survives kill -9; the end of a record that was cut off is passed over by every reader.
/// Numerics: scalars are float32 in the file. Times grow steadily from the wall clock's at the start.
/// Threads:  one owner
/// Ref:      torch.utils.tensorboard.SummaryWriter
class EventWriter {
 public:
  /// Makes the folder when it is missing.
  /// Throws: c10::Error – the folder or the file cannot be made
  explicit EventWriter(const std::string& folder, EventWriterOptions options = {});
  /// Flushes; what then cannot be written is logged.
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  // Each throws c10::Error when the file cannot be written: path, the system's reason.

  void scalar(std::string_view tag, double value, int64_t step);
  /// How the tensor's values are spread, in TensorBoard's buckets (each 10 % wider than the one before). NaN and
  /// infinite values are left out; a tensor without any other leaves no trace.
  /// Params: values – any real dtype, shape and device
  /// Cost:   a copy as float64 on the CPU, one pass
  void histogram(std::string_view tag, const at::Tensor& values, int64_t step);
  /// Params: image – [H, W] or [C, H, W] with 1, 3 or 4 channels; uint8, or floating point in [0, 1] (what lies outside
  ///                 is clamped)
  /// Throws: c10::ValueError – other shape or dtype
  void image(std::string_view tag, const at::Tensor& image, int64_t step);
  /// Params: text – Markdown
  void text(std::string_view tag, std::string_view text, int64_t step);
  /// The row of this run in the HPARAMS tab. Once a folder: TensorBoard keeps the first.
  /// Params: values  – by name
  ///         metrics – tags of the scalars that stand beside them, with the last value each has
  void hyperparameters(const std::vector<std::pair<std::string, HyperParameter>>& values,
                       const std::vector<std::string>& metrics);
  /// Ends what hyperparameters() began.
  void end_session(bool success = true);

  /// Hands all events to the system.
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

/// One event as it is read back; the values of a summary are an event each.
struct Event {
  enum class Kind { version, session_start, scalar, histogram, image, text, hyperparameters, other };

  Kind kind = Kind::other;
  double wall_time = 0;  ///< seconds since 1970
  int64_t step = 0;
  std::string tag;
  double value = 0;     ///< of a scalar
  std::string content;  ///< the version, the text, the image's file, the plugin's message
  double minimum = 0, maximum = 0, count = 0, sum = 0, sum_squares = 0;  ///< of a histogram
  std::vector<double> bucket_limits;                                     ///< right ends
  std::vector<double> buckets;                                           ///< how many values
  std::vector<std::pair<std::string, HyperParameter>> parameters;        ///< of a session's start, by name
};

/// Reads an event file. A last record that the end of the file cuts short, as kill -9 leaves it, is left out.
/// Throws: c10::ValueError – missing, no event file, a checksum that is wrong: path and byte offset
std::vector<Event> read_events(const std::string& path);
/// The same from memory.
/// Params: where – names the bytes in errors
std::vector<Event> read_events(std::string_view bytes, const std::string& where);

}  // namespace bellows::io
