// Loads a compiled program, runs it on a saved input, and compares the result with a saved one.
#include <torch/torch.h>

#include <iostream>

#include "bellows/export/program.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    std::vector<at::Tensor> tensors;
    torch::load(tensors, argv[2]);
    const at::Tensor found = bellows::load_program(argv[1])(tensors.at(0));
    if (found.equal(tensors.at(1))) return 0;
    std::cerr << "difference: " << (found - tensors.at(1)).abs().max().item<double>() << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
  }
  return 1;
}
