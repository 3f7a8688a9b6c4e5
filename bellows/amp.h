#pragma once

#include "bellows/amp/autocast.h"
