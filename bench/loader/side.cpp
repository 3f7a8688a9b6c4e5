#include "bench/loader/side.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <sys/resource.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <sstream>

#include "bellows/data/dataset.h"
#include "bellows/data/formats/beton_source.h"
#include "bellows/data/formats/pack_source.h"
#include "bellows/data/formats/shard_pattern.h"
#include "bellows/io/bytes.h"
#include "bellows/system/file.h"

namespace bellows::bench {

namespace {

data::Dataset open_side(const std::string& kind, const std::string& folder) {
  if (kind == "beton") return data::Dataset(data::open_beton({folder + "/photos.beton"}));
  if (kind == "raw") return data::Dataset(data::open_beton({folder + "/raw.beton"}));
  if (kind == "tar") return data::open_shards(data::expand_shards(folder + "/photos-{0..3}.tar"));
  TORCH_CHECK_VALUE(kind == "pack" || kind == "restart",
                    "loader: expected the side beton, raw, tar, pack or restart, got ", kind, ".");
  return data::Dataset(data::open_pack({folder + (kind == "pack" ? "/photos.pack" : "/restart.pack")}));
}

data::Dataset normalized(const data::Dataset& dataset) {
  return dataset.normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
}

double run_epochs(data::Loader& loader, int64_t& epoch, int64_t count) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t end = epoch + count; epoch < end; ++epoch) {
    loader.start(epoch);
    while (const auto batch = loader.next()) {
      TORCH_CHECK(batch->size() > 0, "loader: a batch is empty.");
    }
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double megabytes_of(const std::string& key) {
  std::ifstream lines("/proc/self/smaps_rollup");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key + ":")) return std::stod(line.substr(key.size() + 1)) / 1024;
  }
  return 0;
}

std::string usage() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return c10::str(seconds(used.ru_utime) + seconds(used.ru_stime), " ", megabytes_of("Pss"), " ",
                  megabytes_of("Pss_Anon"));
}

void write_check(const data::Dataset& dataset, std::istream& words) {
  std::string file;
  int64_t count = 0, side = 0;
  words >> file >> count >> side;
  data::Loader loader =
      normalized(dataset.subrange(0, count).center_crop(side, side)).sequential().batch(count).loader();
  const auto batch = loader.next();
  const at::Tensor image = (*batch)["image"].contiguous();
  write_text_file(file, {static_cast<const char*>(image.const_data_ptr()), image.nbytes()});
}

}  // namespace

int serve_side(const std::string& kind, const std::string& folder, int threads) {
  const data::Dataset dataset = open_side(kind, folder);
  data::Loader loader =
      normalized(dataset.random_resized_crop(224, 224).flip()).shuffle(1).batch(64).threads(threads).loader();
  int64_t epoch = 0;
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t count = 0;
    words >> word;
    if (word == "run" && words >> count) {
      std::cout << run_epochs(loader, epoch, count) << std::endl;
    } else if (word == "check") {
      write_check(dataset, words);
      std::cout << "ok" << std::endl;
    } else {
      std::cout << usage() << std::endl;
    }
  }
  return 0;
}

}  // namespace bellows::bench
