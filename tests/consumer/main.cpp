// A user's program over the installed package: seeds, makes a tensor, writes a file and reads it again.
#include <ATen/core/Tensor.h>
#include <ATen/ops/rand.h>
#include <bellows/core.h>
#include <bellows/system.h>

#include <cstdio>
#include <exception>
#include <string>

int main(int argc, char** argv) try {
  const std::string path = std::string(argc > 1 ? argv[1] : ".") + "/consumer.txt";
  bellows::seed_everything(7);
  const at::Tensor first = at::rand({3, 4});
  bellows::seed_everything(7);
  TORCH_CHECK(at::rand({3, 4}).equal(first), "consumer: the same seed gave other numbers");

  const std::string sum = std::to_string(first.sum().item<float>());
  bellows::write_text_file(path, sum);
  TORCH_CHECK(bellows::read_text_file(path) == sum, "consumer: ", path, " does not hold what was written");
  std::printf("bellows works: the sum of 12 seeded numbers is %s\n", sum.c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
