#include <ATen/ops/zeros.h>

#include <chrono>
#include <thread>

#include "bellows/data/dataset.h"
#include "bellows/data/images/augment.h"
#include "tests/data/allocation_count.h"
#include "tests/data/support.h"

namespace bellows::data::testing {
namespace {

/// Allocations of the workers in 12 batches after as many to warm up. While the caller sleeps, the worker makes the
/// batches ahead: otherwise the caller may make them all, and the worker is still cold when counting begins.
int64_t workers_allocations(const Dataset& set) {
  Loader loader = set.batch(8).threads(1).prefetch(2).loader();
  loader.start(0);
  for (int i = 0; i < 12; ++i) {
    loader.next();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const int64_t all = test::all_allocations(), own = test::own_allocations();
  for (int i = 0; i < 12; ++i) loader.next();
  return test::all_allocations() - all - (test::own_allocations() - own);
}

// What each sample needs stands ready: decoded pixels, both turns of the scratch, weights. Buffers grow with the largest
// crop so far, which is why the pictures are all of one size and the first batches do not count.
TEST(SteadyState, PicturesPassWithoutAllocation) {
  const at::Tensor image = at::zeros({96, 120, 3}, at::kByte);
  const io::Bytes jpeg = io::encode_jpeg(image);
  TemporaryFolder folder;
  std::vector<Member> members;
  members.reserve(256);
  for (int i = 0; i < 256; ++i)
    members.push_back({std::to_string(i) + ".jpg", {reinterpret_cast<const char*>(jpeg.data()), jpeg.size()}});
  write_shard(folder / "x.tar", members);
  const Dataset files = open(folder / "x.tar").shuffle(1);
  const Dataset arrays = Dataset(from_tensors({{"image", image.unsqueeze(0).expand({256, 96, 120, 3})}})).shuffle(1);
  for (const Dataset& set : {files, arrays, files.fast_decode()}) {
    const Dataset crop = set.random_resized_crop(32, 32, {0.9, 1.0}).flip();
    EXPECT_LE(workers_allocations(crop.normalize({0.5}, {0.5})), 8);
    EXPECT_LE(workers_allocations(crop.dtype(at::kByte).channels_last()), 8);
    const Dataset augmented = crop.color_jitter({.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1})
                                  .rand_augment()
                                  .random_erasing();
    EXPECT_LE(workers_allocations(augmented.pixels(pixel_chain(RandomBrightness{0.1}, Normalize{}))), 8);
  }
}

}  // namespace
}  // namespace bellows::data::testing
