// Data: one file format into another, augmented batches from it, half an epoch on two ranks and the rest on three, and
// what the loader's time went into.
#include <bellows/core.h>
#include <bellows/data.h>

#include <cstdio>
#include <set>

namespace data = bellows::data;

namespace {

/// Any source into any sink; `bellows pack` does this in parallel, with resizing, and goes on where it was interrupted.
void convert(const data::Source& source, data::Sink& sink) {
  data::Sample sample;
  for (int64_t i = 0; i < source.size(); ++i) {
    source.read(i, sample);
    sink.write(sample);
  }
  sink.close();
}

/// Rank `rank` of `world` takes `steps` batches (-1: all that are left), from where `consumed` samples are done.
int64_t take(const data::Dataset& dataset, int64_t rank, int64_t world, int64_t consumed, int64_t steps,
             std::multiset<int64_t>& seen) {
  auto loader = dataset.distributed(rank, world).loader();
  loader.start_at(0, consumed);
  for (int64_t step = 0; step != steps; ++step) {
    const auto batch = loader.next();
    if (!batch) break;
    seen.insert(batch->ids().begin(), batch->ids().end());
    consumed = batch->consumed();
  }
  return consumed;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string folder = argc > 1 ? argv[1] : "data/digits";
  const auto digits = data::open(folder, {.split = "train"});
  data::PackSink pack("digits.pack");
  convert(*digits.source(), pack);

  // The format is told by content. Every random choice depends on (seed, epoch, sample) only.
  const auto packed = data::open("digits.pack").decode("gray").order(data::page_shuffled(), 1).batch(32).threads(2);
  auto augmented = packed.random_resized_crop(8, 8, {0.6, 1.0}).normalize({0.3}, {0.4}).loader();
  for (const auto& batch : augmented.epoch(0)) {
    if (batch.index() == 0) std::printf("images in a batch: %lld\n", static_cast<long long>(batch["image"].size(0)));
  }
  std::printf("%s\n", augmented.report().to_string().c_str());

  // Two ranks begin an epoch, three end it; every sample comes exactly once.
  std::multiset<int64_t> seen;
  int64_t consumed = 0;
  for (int64_t rank = 0; rank < 2; ++rank) consumed = take(packed, rank, 2, 0, 10, seen);
  for (int64_t rank = 0; rank < 3; ++rank) take(packed, rank, 3, consumed, -1, seen);
  const bool once = seen.size() == std::set<int64_t>(seen.begin(), seen.end()).size();
  std::printf("%zu of %lld samples, %s\n", seen.size(), static_cast<long long>(packed.size()),
              once ? "each exactly once" : "some more than once");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", bellows::user_message(error).c_str());
  return 1;
}
