#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "bellows/train/trainer.h"
#include "tests/train/parallel/elastic_job.h"

namespace bellows::train {

/// The weights after the training of elastic_rank, in one process.
inline NamedTensors trained_alone(Recipe recipe, const std::string& folder) {
  recipe.run_folder = folder;
  Job job = elastic_job(recipe);
  const Model model = job.model;
  Trainer(recipe).fit(std::move(job));
  return model.state_dict();
}

inline void expect_close(const NamedTensors& got, const NamedTensors& expected) {
  std::map<std::string, at::Tensor> by_name(got.begin(), got.end());
  ASSERT_EQ(by_name.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(by_name.contains(name)) << name;
    const bool close = at::allclose(by_name.at(name), tensor, /*rtol=*/1e-8, /*atol=*/1e-10);
    EXPECT_TRUE(close) << name << " differs by " << (by_name.at(name) - tensor).abs().max().item<double>();
  }
}

/// The steps in a log, in the order of its rows.
inline std::vector<int64_t> logged_steps(const std::string& path) {
  std::ifstream file(path);
  std::vector<int64_t> steps;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) steps.push_back(std::stoll(line));
  return steps;
}

}  // namespace bellows::train
