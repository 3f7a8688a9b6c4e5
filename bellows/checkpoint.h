#pragma once

// Includes the component checkpoint, which saves the state of a run to disk and loads it.
#include "bellows/checkpoint/async_saver.h"
#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/folder.h"
#include "bellows/checkpoint/format.h"
#include "bellows/checkpoint/rng.h"
#include "bellows/checkpoint/saved_checkpoint.h"
#include "bellows/checkpoint/sharded.h"
#include "bellows/checkpoint/sharded_folder.h"
