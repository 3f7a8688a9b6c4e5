#pragma once

#include "bellows/ladder/ladder.h"
#include "bellows/ladder/page.h"
