#pragma once

#include <cstdint>

namespace bellows {

class Model;

/// Puts the weights of the model's 2-d convolutions into channels-last layout, in place, and leaves every other
/// tensor alone: only convolutions read 4-d weights in that layout. Give the model channels-last inputs, too:
/// `x.contiguous(ChannelsLast)`.
/// Numerics: the values are the same; convolution kernels may sum in another order (docs/numerics.md)
/// Cost:     one copy of each weight that is converted
/// Returns:  the number of weights converted; convolutions where layout means nothing (1×1 kernels on 1 channel …) do
///           not count
/// Ref:      torch.nn.utils.convert_conv2d_weight_memory_format
int64_t to_channels_last(const Model& model);

}  // namespace bellows
