#pragma once

#include "bellows/io/bytes.h"

namespace bellows::fuzz {

// One function a parser. Each feeds it any bytes and uses what comes out; the only exception that may be thrown is
// c10::ValueError, which is caught here. libFuzzer drives them (tests/fuzz/*_fuzz.cpp), and so does a loop of fixed
// mutations in io_test.

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

}  // namespace bellows::fuzz
