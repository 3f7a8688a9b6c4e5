#pragma once

// Includes the component core: errors, logging, seeds, devices and the other building blocks of all components.
#include "bellows/core/channels_last.h"
#include "bellows/core/device.h"
#include "bellows/core/dtype_info.h"
#include "bellows/core/error.h"
#include "bellows/core/exporting.h"
#include "bellows/core/grad_mode.h"
#include "bellows/core/log.h"
#include "bellows/core/model.h"
#include "bellows/core/model_parts.h"
#include "bellows/core/print.h"
#include "bellows/core/progress.h"
#include "bellows/core/registry.h"
#include "bellows/core/seed.h"
#include "bellows/core/stats.h"
#include "bellows/core/weight_bytes.h"
