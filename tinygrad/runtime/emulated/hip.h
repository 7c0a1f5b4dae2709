// The words of HIP C that rendered kernels use, for a C++ compiler: CUDA's, and clang's own half type.
#pragma once

#include "cuda.h"

#define _Float16 emulator::Half
