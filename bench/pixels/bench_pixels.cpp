// Where the time of one picture goes: a photograph 500 x 375, quality 90, through a random resized crop to 224 x 224.
#include <ATen/core/Tensor.h>

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "bellows/data/images/placement.h"
#include "bellows/io/images/image.h"
#include "bellows/system/file.h"
#include "bench/loader/photographs.h"
#include "bench/support/bench.h"

namespace bellows::bench {

namespace {

using data::ImageView;
using data::Placement;

constexpr int64_t side = 224;

/// Processor time of this thread: others on the machine do not count.
double thread_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

/// Microseconds a call, the least of several rounds.
template <class F>
double timed(int calls, const F& call) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 7; ++round) {
    const double start = thread_us();
    for (int i = 0; i < calls; ++i) call(i);
    best = std::min(best, (thread_us() - start) / calls);
  }
  return best;
}

void print(const char* what, double microseconds) {
  std::printf("%-44s %9.1f us %9.0f per second\n", what, microseconds, 1e6 / microseconds);
}

class Photograph {
 public:
  explicit Photograph(std::string jpeg)
      : jpeg_(std::move(jpeg)),
        restarts_(io::jpeg_with_restarts(bytes())),
        info_(io::image_info(bytes())),
        whole_(io::decode_image(bytes())) {
    for (uint64_t i = 0; i < 64; ++i) {
      RandomStream random(i);
      Placement placement = Placement::whole(info_.height, info_.width);
      placement.crop(data::draw_resized_crop(info_.height, info_.width, {0.08, 1.0}, {0.75, 4.0 / 3}, random));
      placement.scale(side, side);
      placement.mirrored = i % 2 == 1;
      placements_.push_back(placement);
    }
    out_.resize(side * side * 3);
  }

  void run() {
    print("header", timed(64, [&](int) { io::image_info(bytes()); }));
    print("decode, whole", timed(64, [&](int) { decode({0, 0, info_.height, info_.width}, false); }));
    print("decode, whole, fast", timed(64, [&](int) { decode({0, 0, info_.height, info_.width}, true); }));
    print("decode, the last row", timed(64, [&](int) { decode({info_.height - 1, 0, 1, info_.width}, false); }));
    print("decode, the crop", timed(64, [&](int i) { decode(placements_[static_cast<size_t>(i)].needed(), false); }));
    print("decode, the crop, by restart markers",
          timed(64, [&](int i) { decode(placements_[static_cast<size_t>(i)].needed(), false, restarts_); }));
    print("decode, the crop, fast",
          timed(64, [&](int i) { decode(placements_[static_cast<size_t>(i)].needed(), true); }));
    print("cut and scale", timed(64, [&](int i) { scale(i); }));
    const ImageView scaled = scale(1);
    for (const auto type : {c10::ScalarType::Float, c10::ScalarType::BFloat16, c10::ScalarType::Byte}) {
      for (const bool last : {false, true}) {
        const std::string name = std::string("write ") + c10::toString(type) + (last ? ", channels last" : "");
        print(name.c_str(), timed(64, [&](int) { normalizer_.run(scaled, out_.data(), last, type); }));
      }
    }
  }

 private:
  io::ByteSpan bytes() const { return io::as_bytes(jpeg_); }
  void decode(const io::ImageRegion& region, bool fast) { decode(region, fast, bytes()); }
  void decode(const io::ImageRegion& region, bool fast, io::ByteSpan bytes) {
    io::decode_image_part(bytes, {io::ColorMode::rgb, region, 1, fast}, memory_);
  }
  ImageView scale(int i) {
    const io::ImageRegion all{0, 0, info_.height, info_.width};
    const ImageView view{whole_.const_data_ptr<uint8_t>(), info_.height, info_.width, 3, info_.width * 3, 3};
    return data::place(view, all, 1, placements_[static_cast<size_t>(i)], scratch_);
  }

  std::string jpeg_;
  io::Bytes restarts_;
  io::ImageInfo info_;
  at::Tensor whole_;
  std::vector<Placement> placements_;
  std::vector<uint8_t> memory_;
  std::vector<float> out_;
  data::Scratch scratch_;
  data::Normalizer normalizer_{{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}, 3};
};

}  // namespace

}  // namespace bellows::bench

int main(int argc, char** argv) {
  using namespace bellows::bench;
  const auto run = [](const Options& options) {
    const std::string& path = options.extra.at("photo");
    Photograph(path.empty() ? make_photographs(1).jpegs.front()
                            : std::string(bellows::io::as_text(bellows::MappedFile(path).bytes())))
        .run();
    return 0;
  };
  return bench_main(argc, argv,
                    "Times the stages from a photograph to a row of a batch, on one core.\n"
                    "--photo FILE: a JPEG file instead of a photograph of scikit-learn.",
                    run, {{"photo", ""}});
}
