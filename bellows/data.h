#pragma once

#include "bellows/data/batch.h"
#include "bellows/data/dataset.h"
#include "bellows/data/fingerprint.h"
#include "bellows/data/loader.h"
#include "bellows/data/pipeline.h"
#include "bellows/data/sample.h"
#include "bellows/data/source.h"
#include "bellows/data/torch_adapter.h"
#include "bellows/data/transform.h"
#include "bellows/data/webdataset.h"

namespace bellows {
using data::Batch;
}  // namespace bellows
