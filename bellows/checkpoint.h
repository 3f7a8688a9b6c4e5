#pragma once

#include "bellows/checkpoint/async_saver.h"
#include "bellows/checkpoint/checkpoint.h"
#include "bellows/checkpoint/folder.h"
#include "bellows/checkpoint/rng.h"
