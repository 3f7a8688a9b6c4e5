#pragma once

#include "bellows/io/bytes.h"

namespace bellows::fuzz {

// One function a parser. Each feeds it any bytes and uses what comes out; the only exception that may be thrown is
// c10::ValueError, which is caught here. libFuzzer drives them (entry.cpp, script/fuzz); the tests give them the
// corpus, what was found before (replay_test.cpp), and fixed mutations (mutate.h).

void tar(io::ByteSpan bytes);
/// A whole torch.save file.
void torch_file(io::ByteSpan bytes);
/// Only the pickle in it, whose checksum otherwise keeps mutations out.
void pickle(io::ByteSpan bytes);
void safetensors(io::ByteSpan bytes);
void image(io::ByteSpan bytes);
void compressed(io::ByteSpan bytes);
/// The bytes as an event file, and as the one message of a file whose checksums are right.
void event_file(io::ByteSpan bytes);
/// As it is, and with checksums mended.
void pack(io::ByteSpan bytes);
void beton(io::ByteSpan bytes);
/// DALI's index of a tar archive, and ours as it is and with its checksum mended.
void dali_index(io::ByteSpan bytes);
void tar_index(io::ByteSpan bytes);
/// As a TFRecord file, as the index of one, and as a zlib stream.
void tfrecord(io::ByteSpan bytes);
void tf_example(io::ByteSpan bytes);
/// As a RecordIO file, as the index of one, and as a record that is written and read back.
void recordio(io::ByteSpan bytes);

/// The bytes as index.json, and as a shard with columns of every encoding.
void mds(io::ByteSpan bytes);
void npy(io::ByteSpan bytes);
void csv(io::ByteSpan bytes);
/// One line.
void jsonl(io::ByteSpan bytes);

void dataset_json(io::ByteSpan bytes);
void subset(io::ByteSpan bytes);
/// A tf.train.Example as the fields of a sample, notes of arrays included.
void example_fields(io::ByteSpan bytes);
/// An answer's headers, line by line, and the bytes as a URL.
void http_headers(io::ByteSpan bytes);
/// The index of a checkpoint of many ranks: as it is, and with its checksum mended.
void checkpoint_index(io::ByteSpan bytes);
/// A bundle of compiled kernels: as it is, and with its head mended.
void kernel_bundle(io::ByteSpan bytes);
/// Public keys in PEM format.
void public_key(io::ByteSpan bytes);

/// The configuration of a quantized checkpoint, which is also written and read again.
void quant_config(io::ByteSpan bytes);
/// A file of a quantized model. The model then runs.
void quant_file(io::ByteSpan bytes);
/// A configuration, a zero byte, and a safetensors file with a quantized checkpoint. The model then runs.
void quant_checkpoint(io::ByteSpan bytes);
/// A request for inference: as JSON, with binary data after the JSON text, and as raw data. Accepted tensors are written
/// as a response.
void infer_request(io::ByteSpan bytes);
/// A request for inference over gRPC.
void infer_message(io::ByteSpan bytes);
/// The configuration of a served model, which is also written as JSON.
void serve_config(io::ByteSpan bytes);
/// The JSON of a program of torch.export, whose plan is built. It does not run.
void exported_program(io::ByteSpan bytes);
/// A file with a teacher's outputs: as it is, and with its checksum mended.
void teacher_cache(io::ByteSpan bytes);

}  // namespace bellows::fuzz
