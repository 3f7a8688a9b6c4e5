#include <c10/util/Exception.h>

#include <memory>

#include "bellows/core/progress.h"
#include "bellows/data/convert/compare.h"
#include "bellows/data/convert/convert_impl.h"
#include "bellows/data/convert/in_order_impl.h"
#include "bellows/data/formats/pack_source.h"

namespace bellows::data {

namespace {

constexpr int64_t usual_shard_bytes = int64_t{1} << 30;

/// Cuts the samples into shards and writes them.
class ShardsWriter {
 public:
  ShardsWriter(const OutputFormat& format, const ConvertPlaces& places, const ConvertOptions& options,
               ConvertState& state, ConvertResult& result)
      : format_(format), places_(places), options_(options), state_(state), result_(result) {
    limit_ = options.shard_bytes > 0 ? options.shard_bytes : usual_shard_bytes;
    position_ = result.samples;
  }

  /// Begins a shard. Where it is a pack that was left unfinished, goes on with it.
  void begin() {
    shard_ = {.name = places_.shard_name(state_.shards().size())};
    sink_ = format_.sink(places_.staged(shard_.name));
    pack_ = dynamic_cast<PackSink*>(sink_.get());
    payload_ = 0;
    if (!pack_) return;
    shard_.kept = shard_.samples = pack_->size();
    position_ += shard_.kept;
  }

  /// The sample that is to be written next.
  int64_t position() const { return position_; }

  void write(const Sample& sample) {
    if (!sink_) begin();
    sink_->write(sample);
    shard_.digest += sample_digest(format_, sample, position_);
    shard_.unnamed += sample.key.empty() ? 1 : 0;
    for (const Field& field : sample.fields) payload_ += static_cast<int64_t>(field.bytes.size());
    ++shard_.samples;
    ++position_;
    const int64_t bytes = pack_ ? static_cast<int64_t>(pack_->bytes()) : payload_;
    if (places_.sharded() && (bytes >= limit_ || shard_.samples == options_.shard_samples)) end();
  }

  void end() {
    if (!sink_) return;
    sink_->close();
    sink_.reset();
    result_.samples += shard_.samples;
    state_.add(std::move(shard_));
  }

 private:
  const OutputFormat& format_;
  const ConvertPlaces& places_;
  const ConvertOptions& options_;
  ConvertState& state_;
  ConvertResult& result_;
  int64_t limit_, position_ = 0, payload_ = 0;
  FinishedShard shard_;
  std::unique_ptr<Sink> sink_;
  PackSink* pack_ = nullptr;
};

}  // namespace

bool write_shards(const Source& source, const OutputFormat& format, const ConvertPlaces& places,
                  const ConvertOptions& options, int64_t threads, ConvertState& state, ConvertResult& result) {
  ShardsWriter writer(format, places, options, state, result);
  if (writer.position() == source.size()) return true;
  writer.begin();
  result.kept = writer.position();
  TORCH_CHECK_VALUE(result.kept <= source.size(), "convert: ", places.destination(), " holds ", result.kept,
                    " samples of an unfinished conversion, the source has ", source.size(),
                    ". Remove it and start anew.");
  const Recoder recoder(options.picture);
  Progress progress("writing", source.size() - writer.position(), "samples");
  bool stopped = false;
  in_order<ConvertSlot>(
      writer.position(), source.size(), threads,
      [&](int64_t index, ConvertSlot& slot) {
        source.read(index, slot.sample);
        recoder.run(slot.sample, slot.work);
      },
      [&](int64_t, ConvertSlot& slot) {
        stopped = options.stop && options.stop->load();
        if (stopped) return false;
        writer.write(slot.sample);
        progress.advance(1);
        return true;
      });
  if (!stopped) writer.end();
  return !stopped;
}

}  // namespace bellows::data
