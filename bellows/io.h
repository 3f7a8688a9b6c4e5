#pragma once

#include "bellows/io/bytes.h"
#include "bellows/io/crc32.h"
#include "bellows/io/decompress.h"
#include "bellows/io/event_file.h"
#include "bellows/io/image.h"
#include "bellows/io/pickle_value.h"
#include "bellows/io/safetensors.h"
#include "bellows/io/safetensors_header.h"
#include "bellows/io/tar.h"
#include "bellows/io/tfrecord.h"
#include "bellows/io/torch_file.h"
#include "bellows/io/zip.h"
