#pragma once

// Includes the component tune, which searches for the best values of recipe keys.
#include "bellows/tune/lr_range.h"
#include "bellows/tune/pruner.h"
#include "bellows/tune/sampler.h"
#include "bellows/tune/search.h"
#include "bellows/tune/search_space.h"
#include "bellows/tune/study.h"
#include "bellows/tune/study_file.h"
#include "bellows/tune/study_page.h"
