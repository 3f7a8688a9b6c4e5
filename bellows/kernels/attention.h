#pragma once

#include <cstdint>
#include <vector>

namespace bellows::kernels {

/// A batch of matrices in one buffer. Strides are in elements. The batch has two dims, so that the heads of a packed
/// projection, or a mask that several heads share, need no copy. Strides of 0 repeat elements.
template <class T>
struct Matrices {
  T* data = nullptr;
  int64_t outer = 0, inner = 0;  ///< strides of the batch dims
  int64_t inner_size = 1;
  int64_t row = 0, column = 1;  ///< strides within a matrix

  T* at(int64_t i) const { return data + i / inner_size * outer + i % inner_size * inner; }
};

/// One masking step: adds a mask to the logits, or replaces some logits by one value.
struct AttentionMask {
  Matrices<const float> added{};
  Matrices<const bool> replaced{};  ///< used if `added` has no data
  bool inverted = false;            ///< replaces logits where `replaced` is false
  float value = 0;                  ///< replaces logits
};

/// Arguments of attention in fp32: softmax(scale · query · key + masks) · value, for each matrix of the batch. `rows`
/// are queries, and `columns` are keys.
struct Attention {
  int64_t batch = 0, rows = 0, columns = 0;
  int64_t width = 0, value_width = 0;
  Matrices<const float> query{};  ///< rows × width
  Matrices<const float> key{};    ///< width × columns: transposed, as in the matmul that computes the logits
  Matrices<const float> value{};  ///< columns × value_width
  float scale = 1;
  Matrices<const float> dropout{};  ///< rows × columns; factors of the attention weights; no data: no dropout
};

struct AttentionForward {
  Attention of{};
  std::vector<AttentionMask> masks{};  ///< applied in order
  bool empty_rows_are_zero = false;    ///< the weights of rows in which all logits are −∞ are 0 instead of NaN
  float* weights = nullptr;            ///< [batch, rows, columns]: the result of softmax, before dropout; may be null
  float* dropped = nullptr;            ///< [batch, rows, columns]: the weights after dropout; may be null
  float* result = nullptr;             ///< [batch, rows, value_width]
  Matrices<float> placed{};  ///< like `result`, with other strides, instead of it; elements of a row are adjacent
};

struct AttentionBackward {
  Attention of{};
  /// Gradients of logits that the forward pass replaced are replaced, too, before `scale` is applied. `added` is unused
  std::vector<AttentionMask> masks{};
  const float* weights = nullptr;    ///< [batch, rows, columns] from the forward pass
  Matrices<const float> gradient{};  ///< of the result: rows × value_width
  float* query_gradient = nullptr;   ///< [batch, rows, width]; may be null
  float* key_gradient = nullptr;     ///< [batch, width, columns]; may be null
  float* value_gradient = nullptr;   ///< [batch, columns, value_width]; may be null
};

/// Numerics: sums of matmuls are computed in the order of their inner dims, with fused multiply-add if the processor has
///           it. Sums of a row are computed in a fixed order. The error of e^x is at most one unit in the last place.
///           NaN propagates, and rows without any logit (all −∞) are NaN by default, as in libtorch. Results are
///           bit-identical for any number of threads
/// Cost:     the logits of a block of rows stay in the cache. Forward writes the weights once, and backward reads them
///           once. Each thread keeps a buffer of one key, one value and two blocks of logits
/// Threads:  thread-safe; uses the threads of parallel_chunks()
void attention_forward(const AttentionForward& args);
void attention_backward(const AttentionBackward& args);

/// Reference implementations in plain C++. They compute in double, one value at a time.
namespace ref {
void attention_forward(const AttentionForward& args);
void attention_backward(const AttentionBackward& args);
}  // namespace ref

}  // namespace bellows::kernels
