#pragma once

#include <cstdint>
#include <string>

namespace bellows::bench {

/// Held-out accuracies of two training runs with the same seed and the same number of steps, in percent.
struct TrainingAccuracy {
  double fp32 = 0;        ///< run without quantization
  double calibrated = 0;  ///< its static int8 model, calibrated after training
  double trained = 0;     ///< int8 model of a run that trained with quantization
};

/// Trains the ResNet on the digits twice, and quantizes both models. The second run trains with quantization from 60 % of
/// the steps on, and with frozen batch norms from 85 % on.
/// Params: data – folder of the digits
TrainingAccuracy accuracy_of_training(const std::string& data, int64_t epochs, int64_t seed);

}  // namespace bellows::bench
